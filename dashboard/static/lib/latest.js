// Of several askings of the same thing, only the latest counts: the earlier ones are broken off.

export class Latest {
  #turn = 0;
  #abort = null;

  /** `signal` for fetch; `isOver()` is true once a later one has begun. */
  begin() {
    this.#abort?.abort();
    this.#abort = new AbortController();
    const turn = ++this.#turn;
    return { signal: this.#abort.signal, isOver: () => turn !== this.#turn };
  }
}
