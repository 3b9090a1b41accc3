// Inside one collective: chunks on their way between ranks; what ranks hold, or what lanes do.

import { drawAxes, line, makeCanvas, ticksOf } from "../canvas.js";
import { ramp, seriesColour, themed } from "../colour.js";
import { chooser, element, replace } from "../dom.js";
import { rampLegend, seriesLegend } from "../legend.js";
import { plainText, sizeText, timeText } from "../units.js";

const COPY = seriesColour(0);
const SUM = seriesColour(5);
const FRAMES = 600;
const MOST_DOTS = 4000;
const GROUPS = [
  ["moves data", seriesColour(0), ["put", "get", "put_packets", "hop_put", "transfer"]],
  ["copies", seriesColour(4), ["copy", "read_packets"]],
  ["reduces", seriesColour(5), ["reduce", "reduce_packets"]],
  ["signals", seriesColour(3), ["signal", "hop_signal"]],
  ["kernel", seriesColour(2), ["kernel"]],
];

export function drawCollective(root, data, context) {
  const isProgram = data.by === "program";
  const end = isProgram ? data.num_steps : maxOf(data.bars.end);
  const state = { at: 0, timer: 0 };
  const slider = element("input", { type: "range", min: 0, max: FRAMES, value: 0, "aria-label": isProgram ? "Step" : "Moment", input: () => at((Number(slider.value) / FRAMES) * end) });
  const play = element("button", { type: "button", click: toggle }, "Play");
  const when = element("output", { class: "readout" });
  const told = element("div", { class: "scroll told", tabindex: 0, role: "region", "aria-label": "Moves" });
  const ring = makeCanvas(`Chunks moving between ${data.ranks.length} ranks`, (width) => Math.min(560, Math.max(300, width)),
    (pen, width, tall) => drawRing(pen, width, tall, data, state));
  const beside = isProgram ? heldCanvas(data, state) : barsCanvas(data, state, end);

  function at(moment) {
    state.at = Math.min(end, Math.max(0, moment));
    slider.value = String(Math.round((state.at / (end || 1)) * FRAMES));
    when.textContent = isProgram ? `step ${Math.min(data.num_steps, Math.floor(state.at) + 1)} of ${data.num_steps}` : `${timeText(state.at)} of ${timeText(end)}`;
    replace(told, listed(data, state));
    ring.redraw();
    beside?.redraw();
  }

  function toggle() {
    if (state.timer) {
      clearInterval(state.timer);
      state.timer = 0;
    } else {
      const stride = isProgram ? 0.05 : end / 300;
      state.timer = setInterval(() => at(state.at >= end ? 0 : state.at + stride), 50);
    }
    play.textContent = state.timer ? "Pause" : "Play";
  }

  const step = (by) => element("button", { type: "button", click: () => at(Math.floor(state.at + 1e-6) + by) }, by > 0 ? "Next step" : "Step back");
  root.append(
    element("h2", {}, data.title),
    element("div", { class: "bar" },
      data.ways.length > 1 ? chooser("Drawn from", data.ways.map((way) => ({ program: "the program", time: "measured times" })[way]), data.ways.indexOf(data.by), (i) => context.go({ by: data.ways[i], call: undefined })) : null,
      isProgram ? null : chooser("Collective", data.choices, data.call, (i) => context.go({ by: "time", call: i }), !context.isLive)),
    element("div", { class: "bar" }, play, isProgram ? [step(-1), step(1)] : null, element("div", { class: "grow" }, slider), when),
    seriesLegend(isProgram ? [["a copy on its way", COPY], ["on its way into a sum", SUM]] : [["data on their way", COPY], ["line: from whom to whom", "var(--idle)", "thin"]]),
    element("div", { class: "halves" }, element("div", {}, ring.root),
      element("div", {}, beside ? [
        element("h3", {}, isProgram ? "What ranks hold of the output" : "What ranks do"),
        isProgram
          ? rampLegend("ranks that have contributed to a chunk:", "1", String(beside.most), element("span", {}, "empty: nothing yet"))
          : seriesLegend([...GROUPS.map(([name, colour]) => [name, colour]), ["waits", "var(--idle)"]]),
        beside.root] : null)),
    element("h3", {}, isProgram ? "Operations of this step" : "On their way at this moment"), told);
  at(isProgram ? 0.5 : firstMoment(data));
  return () => clearInterval(state.timer);
}

function maxOf(values) {
  let most = 0;
  for (const value of values) most = Math.max(most, value);
  return most;
}

function firstMoment(data) {
  if (!data.begin.length) return 0;
  const middle = Math.floor(data.begin.length / 2);
  return (data.begin[middle] + data.end[middle]) / 2;
}

function drawRing(pen, width, tall, data, state) {
  const many = data.ranks.length;
  const dot = Math.max(1.5, Math.min(15, (Math.PI * Math.min(width, tall)) / many / 3));
  const reach = Math.min(width, tall) / 2 - dot - 26;
  const place = (i) => {
    const turn = (2 * Math.PI * i) / many - Math.PI / 2;
    return [width / 2 + reach * Math.cos(turn), tall / 2 + reach * Math.sin(turn)];
  };
  const flying = flyingAt(data, state.at);
  pen.lineWidth = flying.length > 400 ? 0.4 : 1;
  pen.strokeStyle = themed("idle");
  for (const i of flying.slice(0, MOST_DOTS)) line(pen, ...place(data.src[i]), ...place(data.dst[i]));
  pen.fillStyle = themed("node");
  for (let i = 0; i < many; i += 1) {
    pen.beginPath();
    pen.arc(...place(i), dot, 0, 7);
    pen.fill();
  }
  names(pen, data, place, dot, many, width, tall);
  const size = flying.length > 400 ? 2 : Math.max(3, Math.min(7, dot * 0.6));
  for (const i of flying.slice(0, MOST_DOTS)) {
    const [x1, y1] = place(data.src[i]);
    const [x2, y2] = place(data.dst[i]);
    const part = (state.at - data.begin[i]) / (data.end[i] - data.begin[i] || 1);
    pen.fillStyle = data.adds?.[i] ? SUM : COPY;
    pen.fillRect(x1 + (x2 - x1) * part - size, y1 + (y2 - y1) * part - size, 2 * size, 2 * size);
  }
  if (flying.length > MOST_DOTS) {
    pen.fillStyle = themed("quiet");
    pen.textAlign = "left";
    pen.fillText(`${plainText(MOST_DOTS)} of ${plainText(flying.length)} are drawn`, 6, tall - 8);
  }
}

function names(pen, data, place, dot, many, width, tall) {
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  const stride = 2 ** Math.max(0, Math.ceil(Math.log2(many / 32)));
  for (let i = 0; i < many; i += stride) {
    const [x, y] = place(i);
    const inside = dot >= 10;
    pen.fillStyle = themed(inside ? "page" : "quiet");
    const away = inside ? 1 : 1 + (dot + 14) / Math.hypot(x - width / 2, y - tall / 2);
    pen.fillText(String(data.ranks[i]), width / 2 + (x - width / 2) * away, tall / 2 + (y - tall / 2) * away);
  }
}

function flyingAt(data, moment) {
  const found = [];
  for (let i = 0; i < data.begin.length; i += 1) if (data.begin[i] <= moment && moment < data.end[i]) found.push(i);
  return found;
}

function heldCanvas(data, state) {
  if (!data.held) return null;
  const ranks = data.ranks.length;
  const most = maxOf(data.held);
  const made = makeCanvas("Contributions by rank and chunk", (width) => Math.min(520, Math.max(220, Math.min(ranks * 26, width)) + 50), (pen, width, tall) => {
    const frame = { left: 62, top: 6, right: width - 10, bottom: tall - 42 };
    const wide = (frame.right - frame.left) / data.chunks;
    const high = (frame.bottom - frame.top) / ranks;
    const step = Math.min(data.num_steps, Math.floor(state.at + 1e-6));
    const gap = Math.min(wide, high) > 6 ? 1 : 0;
    for (let rank = 0; rank < ranks; rank += 1) {
      for (let chunk = 0; chunk < data.chunks; chunk += 1) {
        const held = data.held[(step * ranks + rank) * data.chunks + chunk];
        const share = most > 1 ? (held - 1) / (most - 1) : 1;
        pen.fillStyle = held ? ramp(share) : themed("panel");
        pen.fillRect(frame.left + chunk * wide, frame.top + rank * high, wide - gap, high - gap);
        if (!held || wide < 22 || high < 15) continue;
        pen.fillStyle = share > 0.5 ? "#000" : "#fff";
        pen.textAlign = "center";
        pen.textBaseline = "middle";
        pen.fillText(String(held), frame.left + (chunk + 0.5) * wide, frame.top + (rank + 0.5) * high);
      }
    }
    const whole = (many, room) => ticksOf(0, many - 1, Math.max(1, room)).filter(Number.isInteger);
    drawAxes(pen, frame,
      { at: (chunk) => frame.left + (chunk + 0.5) * wide, ticks: whole(data.chunks, 10), text: String, title: "chunk of the output" },
      { at: (rank) => frame.top + (rank + 0.5) * high, ticks: whole(ranks, 12), text: String, title: "rank" });
  });
  return { ...made, most };
}

function barsCanvas(data, state, end) {
  const { bars } = data;
  const colours = new Map(GROUPS.flatMap(([, colour, kinds]) => kinds.map((kind) => [kind, colour])));
  const ranks = data.ranks.length;
  return makeCanvas("Steps of every rank over time", (width) => Math.min(520, Math.max(220, ranks * 26)) + 50, (pen, width, tall) => {
    const frame = { left: 62, top: 6, right: width - 30, bottom: tall - 42 };
    const x = (us) => frame.left + (us / (end || 1)) * (frame.right - frame.left);
    const high = (frame.bottom - frame.top) / ranks;
    const gap = high > 6 ? 2 : 0;
    for (const isWait of [true, false]) {
      for (let i = 0; i < bars.row.length; i += 1) {
        const kind = data.kinds[bars.kind[i]];
        const top = frame.top + bars.row[i] * high;
        const begun = bars.begin[i] + bars.wait[i];
        if (isWait) {
          const until = kind === "wait" ? bars.end[i] : begun;
          if (until <= bars.begin[i]) continue;
          pen.fillStyle = themed("idle");
          pen.fillRect(x(bars.begin[i]), top, Math.max(0.5, x(until) - x(bars.begin[i])), high - gap);
        } else if (kind !== "wait") {
          pen.fillStyle = colours.get(kind) ?? themed("quiet");
          pen.fillRect(x(begun), top, Math.max(1, x(bars.end[i]) - x(begun)), high - gap);
        }
      }
    }
    const ticks = ticksOf(0, ranks - 1, 12).filter(Number.isInteger);
    drawAxes(pen, frame,
      { at: x, ticks: ticksOf(0, end, 6), text: timeText, title: "time since the first step" },
      { at: (row) => frame.top + (row + 0.5) * high, ticks, text: (row) => String(data.ranks[row] ?? ""), title: "rank" });
    pen.strokeStyle = themed("alarm");
    pen.lineWidth = 1.5;
    line(pen, x(state.at), frame.top, x(state.at), frame.bottom);
  });
}

function listed(data, state) {
  const flying = flyingAt(data, state.at);
  if (!flying.length) return element("p", { class: "quiet" }, "Nothing is on its way.");
  const some = flying.slice(0, 24);
  const said = data.by === "program"
    ? [...new Set(some.map((i) => data.texts[data.op[i]]))]
    : some.map((i) => `rank ${data.ranks[data.src[i]]} to rank ${data.ranks[data.dst[i]]}: ${sizeText(data.nbytes[i])}, ${timeText(data.begin[i])} to ${timeText(data.end[i])}`);
  return [element("ul", {}, said.map((text) => element("li", {}, element("code", {}, text)))),
    flying.length > some.length ? element("p", { class: "quiet" }, `and ${plainText(flying.length - some.length)} more`) : null];
}
