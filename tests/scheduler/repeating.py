"""What is said of a seed that goes wrong: which world it is, and the one command that tells its story again."""


def command(kind: str, seed: int, engine: str = "") -> str:
    return f"scripts/simulate --seed {seed} --kind {kind}{f' --engine {engine}' if engine else ''}"


def wrong(kind: str, seed: int, error: Exception, engine: str = "") -> AssertionError:
    under = f" of {engine}" if engine else ""
    return AssertionError(f"{kind} {seed}{under}: {error}\n  repeat it: {command(kind, seed, engine)}")
