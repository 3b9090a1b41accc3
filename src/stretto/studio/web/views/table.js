// Operations by size: how often, how long, how fast.

import { element, sortedTable } from "../dom.js";
import { plainText, sizeText, timeText } from "../units.js";

export function drawTable(root, data) {
  const number = (title, value, text) => ({ title, number: true, value, text: (row) => text(value(row)) });
  const columns = [
    { title: "collective", text: (row) => row.collective },
    number("size, at least", (row) => row.low_nbytes, sizeText),
    number("ranks", (row) => row.num_ranks, plainText),
    { title: "algorithm", text: (row) => row.algorithm || "-" },
    number("collectives", (row) => row.count, plainText),
    number("running or failed", (row) => row.unfinished, plainText),
    number("median", (row) => row.p50_us, timeText),
    number("99 % within", (row) => row.p99_us, timeText),
    number("median until the last rank came", (row) => row.wait_p50_us, timeText),
    number("median after that", (row) => row.transfer_p50_us, timeText),
    number("bus GB/s", (row) => row.busbw_gbps, plainText),
    number("in all calls", (row) => row.total_us, timeText),
  ];
  root.append(
    element("h2", {}, "Operations by size"),
    !data.rows.length ? "" : element("p", { class: "quiet" },
      "Times are those of a rank's call, from when it was made to its end. A collective waits until its last rank has come; the time after that gives bus GB/s (10^9 bytes a second, as nccl-tests counts). Where switches reduce, bus GB/s may exceed the wire."),
    data.rows.length ? sortedTable(columns, data.rows, "Operations by size") : "");
}
