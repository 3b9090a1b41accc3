// What ran, how much of its time ranks were in collectives, what stands out.

import { drawAxes, makeCanvas, ticksOf } from "../canvas.js";
import { seriesColour } from "../colour.js";
import { element } from "../dom.js";
import { seriesLegend } from "../legend.js";
import { timeText } from "../units.js";

export function drawOverview(root, data) {
  const facts = element("dl", { class: "facts" },
    data.facts.map(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
  const findings = element("ul", { class: "findings" },
    data.findings.map((one) => element("li", {}, one.text, " ", element("a", { href: `#/${one.view}` }, "Show"))));
  const { names } = data.activity;
  const verdict = element("ul", { class: "verdict" },
    data.verdict.map((one) => element("li", { "data-about": one.about }, one.text, " ",
      document.getElementById(`to-${one.view}`) ? element("a", { href: `#/${one.view}` }, "Show") : null)));
  root.append(
    data.verdict.length ? element("section", {}, element("h2", {}, "In short"), verdict) : "",
    !data.activity.share.some((share) => share > 0) ? "" : element("section", {},
      element("h2", {}, "Time in collectives"),
      element("p", { class: "quiet" }, "The share of all ranks that are in a call, waiting or moving data, at every moment."),
      seriesLegend(names.map((name, at) => [name, seriesColour(at)])),
      makeCanvas("Share of ranks in each collective over time", 220, (pen, width, tall) => areas(pen, width, tall, data)).root),
    element("div", { class: "halves" },
      element("section", {}, element("h2", {}, "The run"), facts),
      element("section", {}, element("h2", {}, "What takes time"), data.findings.length ? findings : element("p", { class: "quiet" }, "Nothing."))));
}

function areas(pen, width, tall, data) {
  const { names, bins, share } = data.activity;
  const frame = { left: 62, top: 8, right: width - 16, bottom: tall - 42 };
  const sums = new Float64Array(bins);
  for (let s = 0; s < names.length; s += 1) for (let b = 0; b < bins; b += 1) sums[b] += share[s * bins + b];
  const most = Math.max(1, ...sums);
  const x = (bin) => frame.left + (bin / bins) * (frame.right - frame.left);
  const y = (value) => frame.bottom - (value / most) * (frame.bottom - frame.top);
  const base = new Float64Array(bins);
  for (let s = 0; s < names.length; s += 1) {
    pen.fillStyle = seriesColour(s);
    for (let b = 0; b < bins; b += 1) {
      const value = share[s * bins + b];
      if (value > 0) {
        const left = Math.floor(x(b)); // whole pixels: no seams
        pen.fillRect(left, y(base[b] + value), Math.max(1, Math.floor(x(b + 1)) - left), y(base[b]) - y(base[b] + value));
      }
      base[b] += value;
    }
  }
  drawAxes(pen, frame,
    { at: (us) => x((us / data.span_us) * bins), ticks: ticksOf(0, data.span_us, 8), text: timeText, title: "time since the first call" },
    { at: y, ticks: ticksOf(0, most, 5), text: (v) => `${Math.round(v * 100)} %`, title: "share of ranks" });
}
