// Who waits for whom: the diagnosis in words, and where every rank stands.

import { element, sortedTable } from "../dom.js";
import { plainText } from "../units.js";

export function drawWaiting(root, data) {
  const number = (title, value) => ({ title, number: true, value: (row) => row[value], text: (row) => plainText(row[value]) });
  const text = (title, value, long) => ({ title, long, text: (row) => row[value] || "-" });
  root.append(
    element("h2", {}, "Who waits when the recording ends"),
    element("pre", { class: "page", tabindex: 0 }, data.page),
    element("h3", {}, "Where every rank stands, those behind first"),
    sortedTable([
      text("communicator", "comm"),
      number("rank", "rank"),
      number("step", "seq"),
      text("call", "call", true),
      text("state", "state"),
      text("waits at", "step", true),
    ], data.rows, "Where every rank stands"));
}
