// What each rank did over time: parts of steps, calls, processor time.

import { drawAxes, makeCanvas, pointerAt, ticksOf } from "../canvas.js";
import { seriesColour, themed } from "../colour.js";
import { element } from "../dom.js";
import { seriesLegend } from "../legend.js";
import { timeText } from "../units.js";

const MARK = 0;

export function drawTimeline(root, data, context) {
  const long = new Map();
  for (let i = 0; i < data.kind.length; i += 1) {
    if (data.layer[i] !== MARK) long.set(data.kind[i], (long.get(data.kind[i]) ?? 0) + data.end[i] - data.begin[i]);
  }
  const order = [...long.keys()].sort((a, b) => long.get(b) - long.get(a));
  const names = [...new Set(order.map((kind) => data.names[kind]))].slice(0, 7);
  const colour = (kind) => { const at = names.indexOf(data.names[kind]); return at < 0 ? themed("quiet") : seriesColour(at); };
  const readout = element("p", { class: "readout", role: "status" });
  const wide = data.to - data.from;
  const go = (from, to) => context.go({
    from: Math.max(0, Math.round(from)) || undefined,
    to: Math.round(to) >= data.span ? undefined : Math.max(Math.round(from) + 1, Math.round(to)),
  });
  const button = (text, from, to) => element("button", { type: "button", disabled: !context.isLive, click: () => go(from, to) }, text);
  const tall = Math.min(92, Math.max(26, Math.floor((innerHeight - 330 - 34 * data.notes.length) / data.ranks.length)));
  const frame = (width) => ({ left: 62, top: 8, right: width - 16, bottom: 8 + tall * data.ranks.length });
  const made = makeCanvas(`What ${data.ranks.length} ranks did over time`, tall * data.ranks.length + 50, draw, { pointermove: point });

  function draw(pen, width) {
    const box = frame(width);
    const x = (us) => box.left + ((us - data.from) / wide) * (box.right - box.left);
    pen.save();
    pen.beginPath();
    pen.rect(box.left, box.top, box.right - box.left, box.bottom - box.top);
    pen.clip();
    const part = (tall - 4) / 3;
    for (let i = 0; i < data.row.length; i += 1) {
      const isMark = data.layer[i] === MARK;
      const top = box.top + data.row[i] * tall + 2 + (isMark ? 0 : part);
      const left = x(data.begin[i]);
      const size = Math.max(1, x(data.end[i]) - left);
      pen.fillStyle = isMark ? themed("panel") : colour(data.kind[i]);
      pen.fillRect(left, top, size, part - 1);
      if (!isMark) continue;
      pen.strokeStyle = themed("line");
      pen.lineWidth = 1;
      pen.strokeRect(left, top, size, part - 1);
      const name = data.names[data.kind[i]];
      if (pen.measureText(name).width + 6 < size && part > 9) {
        pen.fillStyle = themed("text");
        pen.textAlign = "left";
        pen.textBaseline = "middle";
        pen.fillText(name, Math.max(left, box.left) + 3, top + part / 2);
      }
    }
    pen.strokeStyle = themed("text");
    pen.lineWidth = 1;
    for (let row = 0; row < data.ranks.length; row += 1) {
      const floor = box.top + (row + 1) * tall - 2;
      pen.beginPath();
      let isOn = false;
      for (let i = 0; i < data.curve.length; i += 1) {
        if (data.curve_row[i] !== row) continue;
        const at = [x(data.curve_at[i]), floor - Math.min(1, data.curve[i]) * (part - 2)];
        if (isOn) pen.lineTo(...at);
        else pen.moveTo(...at);
        isOn = true;
      }
      pen.stroke();
    }
    pen.restore();
    drawAxes(pen, box,
      { at: x, ticks: ticksOf(data.from, data.to, Math.max(2, Math.min(8, (box.right - box.left) / 90))), text: timeText, title: "time since the first call" },
      { at: (row) => box.top + (row + 0.5) * tall, ticks: data.ranks.map((_, row) => row), text: (row) => String(data.ranks[row]), title: "rank" });
  }

  function point(event) {
    const [px, py] = pointerAt(made.canvas, event);
    const box = frame(made.width);
    const row = Math.floor((py - box.top) / tall);
    const us = data.from + ((px - box.left) / (box.right - box.left)) * wide;
    const there = [];
    for (let i = 0; i < data.row.length; i += 1) {
      if (data.row[i] === row && data.begin[i] <= us && data.end[i] >= us) there.push(`${data.names[data.kind[i]]} (${timeText(data.end[i] - data.begin[i])})`);
    }
    readout.textContent = data.ranks[row] === undefined ? "" : `rank ${data.ranks[row]}, ${timeText(us)}: ${there.slice(0, 6).join(", ") || "nothing that has a name"}`;
  }

  root.append(
    element("h2", {}, "What each rank did"),
    element("div", { class: "bar" },
      button("Closer", data.from + wide / 4, data.to - wide / 4), button("Wider", data.from - wide / 2, data.to + wide / 2),
      button("Earlier", Math.max(0, data.from - wide / 2), Math.max(wide, data.to - wide / 2)),
      button("Later", Math.min(data.span - wide, data.from + wide / 2), data.to + wide / 2), button("All", 0, data.span)),
    seriesLegend(names.map((name, at) => [name, seriesColour(at)])),
    element("p", { class: "quiet" }, "Of each rank: the parts of its steps by their names, its calls, and the processor time of its main thread."),
    made.root, readout);
}
