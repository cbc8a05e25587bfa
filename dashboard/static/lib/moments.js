// Moments that came in a page, in the reader's own time.
import { moment, momentInFull } from "./format.js";

export function keepMoments(within) {
  for (const each of within.querySelectorAll("time[data-us]")) {
    each.textContent = moment(Number(each.dataset.us));
    each.title = momentInFull(Number(each.dataset.us));
  }
}
