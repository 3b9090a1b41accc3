// Two recordings: the ratio of medians, operation by operation.

import { drawAxes, line, makeCanvas } from "../canvas.js";
import { seriesColour, themed } from "../colour.js";
import { element, fill, sortedTable } from "../dom.js";
import { seriesLegend } from "../legend.js";
import { plainText, sizeText, timeText } from "../units.js";

const FASTER = seriesColour(0);
const SLOWER = seriesColour(5);

export function drawCompare(root, data) {
  const rows = data.rows.filter((row) => row.ratio);
  const said = (run) => `${run.name}: ${plainText(run.collectives)} collectives of ${plainText(run.ranks)} ranks in ${timeText(run.span_us)}`;
  const number = (title, value, text) => ({ title, number: true, value: (row) => value(row) ?? -1, text: (row) => text(value(row)) });
  fill(root, [
    element("h2", {}, "Before and after"),
    element("dl", { class: "facts" }, element("dt", {}, "before"), element("dd", {}, said(data.before)),
      element("dt", {}, "after"), element("dd", {}, said(data.after))),
    rows.length ? [
      element("p", { class: "quiet" }, "The median time of a call after, over before: left of 1 is faster. Bars hold it in at least 95 of 100 cases, if collectives do not depend on one another; where they cross 1 nothing is shown to have changed."),
      seriesLegend([["faster", FASTER], ["slower", SLOWER], ["no change is shown", "var(--quiet)"]]),
      makeCanvas("Ratio of medians by operation", rows.length * 24 + 54, (pen, width, tall) => dots(pen, width, tall, rows)).root,
    ] : element("p", {}, "No operation is in both."),
    sortedTable([
      { title: "collective", text: (row) => row.collective },
      number("size, at least", (row) => row.low_nbytes, sizeText),
      number("ranks", (row) => row.num_ranks, plainText),
      number("calls before", (row) => row.before?.count, plainText),
      number("median before", (row) => row.before?.p50_us, timeText),
      number("99 % within, before", (row) => row.before?.p99_us, timeText),
      number("calls after", (row) => row.after?.count, plainText),
      number("median after", (row) => row.after?.p50_us, timeText),
      number("99 % within, after", (row) => row.after?.p99_us, timeText),
      number("ratio", (row) => row.ratio, plainText),
      { title: "algorithm before", text: (row) => row.before?.algorithm || "-" },
      { title: "algorithm after", text: (row) => row.after?.algorithm || "-" },
    ], data.rows, "Operations of both runs")]);
}

function dots(pen, width, tall, rows) {
  const frame = { left: Math.min(250, 0.45 * width), top: 8, right: width - 20, bottom: tall - 42 };
  const low = Math.min(0.5, ...rows.map((row) => row.ratio_low)) / 1.05;
  const high = Math.max(2, ...rows.map((row) => row.ratio_high)) * 1.05;
  const x = (ratio) => frame.left + (Math.log(ratio / low) / Math.log(high / low)) * (frame.right - frame.left);
  const y = (at) => frame.top + ((at + 0.5) / rows.length) * (frame.bottom - frame.top);
  const ticks = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.8, 1, 1.25, 2, 5, 10, 20, 50, 100].filter((t) => t >= low && t <= high);
  drawAxes(pen, frame, { at: x, ticks, text: (t) => `${t}x`, title: "median after / median before (logarithmic)" },
    { at: () => 0, ticks: [], text: String, title: "" });
  pen.strokeStyle = themed("text");
  pen.setLineDash([3, 3]);
  line(pen, x(1), frame.top, x(1), frame.bottom);
  pen.setLineDash([]);
  rows.forEach((row, at) => {
    const colour = row.ratio_high < 1 ? FASTER : row.ratio_low > 1 ? SLOWER : themed("quiet");
    pen.fillStyle = themed("text");
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    pen.fillText(`${row.collective}, ${sizeText(row.low_nbytes)}, ${row.num_ranks} ranks`, frame.left - 8, y(at), frame.left - 26);
    pen.strokeStyle = colour;
    pen.fillStyle = colour;
    pen.lineWidth = 2;
    line(pen, x(row.ratio_low), y(at), x(row.ratio_high), y(at));
    pen.beginPath();
    pen.arc(x(row.ratio), y(at), 5, 0, 7);
    pen.fill();
  });
}
