// The machine, its links coloured by use, and a slider over time.

import { drawAxes, line, makeCanvas, pointerAt, ticksOf } from "../canvas.js";
import { ramp, seriesColour, themed } from "../colour.js";
import { chooser, element, replace } from "../dom.js";
import { rampLegend, seriesLegend, swatchItem } from "../legend.js";
import { plainText, rateText, shareText, sizeText, timeText } from "../units.js";

const FULL = 200; // a share of 1 (topology.py)
const FEW_BOXES = 8;
const TOP_ROWS = 10;

export function drawTopology(root, data) {
  const title = element("h2", {}, data.machine ? `Links of ${data.machine}` : "Who sent to whom");
  if (!data.total_nbytes.some((nbytes) => nbytes > 0)) return void root.append(title); // the note says what is missing
  const scene = placed(data);
  const state = { bin: busiestBin(data), box: -1, zoom: 1, x: 0, y: 0, timer: 0, full: 1 };
  const most = data.share.reduce((a, b) => Math.max(a, b), 1) / FULL;
  const map = makeCanvas(`${data.num_ranks} ranks and the links between them`, (width) => heightOf(scene, width),
    (pen, width, tall) => drawMap(pen, width, tall, data, scene, state), mapKeys());
  const use = makeCanvas("Use of links over time", 118, (pen, width, tall) => drawUse(pen, width, tall, data, state));
  const slider = element("input", { type: "range", min: 0, max: data.bins - 1, value: state.bin, id: "when", "aria-label": "Moment", input: () => at(Number(slider.value)) });
  const play = element("button", { type: "button", click: toggle }, "Play");
  const when = element("output", { for: "when", class: "readout" });
  const top = element("div");
  const boxes = ["all of it", ...data.boxes];

  function at(bin) {
    state.bin = bin;
    slider.value = String(bin);
    when.textContent = `${timeText(bin * data.bin_us)} to ${timeText((bin + 1) * data.bin_us)} of ${timeText(data.bins * data.bin_us)}`;
    replace(top, busiest(data, scene, state));
    map.redraw();
    use.redraw();
  }

  function toggle() {
    if (state.timer) {
      clearInterval(state.timer);
      state.timer = 0;
    } else state.timer = setInterval(() => at((state.bin + 1) % data.bins), 120);
    play.textContent = state.timer ? "Pause" : "Play";
  }

  function look(box) {
    state.box = box;
    if (box < 0) Object.assign(state, { zoom: 1, x: 0, y: 0 });
    else focusOn(state, scene, box);
    at(state.bin);
  }

  function mapKeys() {
    let from = null;
    return {
      tabindex: 0,
      wheel: (event) => {
        event.preventDefault();
        closer(event.deltaY < 0 ? 1.25 : 0.8);
      },
      pointerdown: (event) => {
        from = { x: event.clientX, y: event.clientY };
        map.canvas.setPointerCapture(event.pointerId);
      },
      pointermove: (event) => {
        if (!from) return;
        state.x += (event.clientX - from.x) / state.zoom;
        state.y += (event.clientY - from.y) / state.zoom;
        from = { x: event.clientX, y: event.clientY };
        map.redraw();
      },
      pointerup: () => { from = null; },
      dblclick: (event) => {
        const box = boxAt(scene, state, map, pointerAt(map.canvas, event));
        if (box >= 0) select.querySelector("select").selectedIndex = box + 1;
        look(box);
      },
      keydown: (event) => {
        const moves = { ArrowLeft: [40, 0], ArrowRight: [-40, 0], ArrowUp: [0, 40], ArrowDown: [0, -40] };
        if (event.key === "+" || event.key === "=") closer(1.25);
        else if (event.key === "-") closer(0.8);
        else if (event.key === "0" || event.key === "Escape") look(-1);
        else if (moves[event.key]) {
          state.x += moves[event.key][0] / state.zoom;
          state.y += moves[event.key][1] / state.zoom;
          map.redraw();
        } else return;
        event.preventDefault();
      },
    };
  }

  function closer(factor) {
    state.zoom = Math.min(40, Math.max(0.8, state.zoom * factor));
    map.redraw();
  }

  const fullText = () => (data.is_measured ? `${shareText(state.full)} of the link` : rateText(state.full * data.peak_gbytes_per_s));
  const legend = element("div");
  const select = chooser("Look at", boxes, 0, (i) => look(i - 1));
  const scale = chooser("Colours to", [data.is_measured ? "the link's bandwidth" : "the busiest pair", "the busiest moment"], 0, (i) => {
    state.full = i ? most : 1;
    key();
    map.redraw();
  });
  function key() {
    replace(legend, rampLegend(data.is_measured ? "use of a link:" : "rate between two ranks:", "0", fullText(), [
      swatchItem("nothing moves", "var(--idle)", "thin"),
      swatchItem("rank", "var(--node)"),
      data.is_switch.some(Boolean) ? swatchItem("switch", "var(--switch)") : null,
      scene.isGrid ? element("span", {}, "a box: its busiest link inside; the bar on top: to other boxes") : null,
    ]));
  }
  root.append(
    title,
    element("div", { class: "bar" }, select, scale, play, element("div", { class: "grow" }, slider), when),
    element("div", { class: "split" },
      element("div", {},
        seriesLegend([["busiest link", seriesColour(5), "thin"], ["mean of links in use", seriesColour(0), "thin"]]),
        use.root,
        legend,
        map.root,
        element("p", { class: "quiet" }, "Wheel, or + and -, comes closer; drag, or the arrow keys, moves; a double click looks at a box; 0 shows all.")),
      element("section", {}, element("h3", {}, "Busiest links at this moment"), top)));
  key();
  at(state.bin);
  return () => clearInterval(state.timer);
}

// Where boxes stand, in units of a box.
function placed(data) {
  const many = data.boxes.length;
  const isGrid = many > FEW_BOXES;
  const columns = isGrid ? Math.ceil(Math.sqrt(many * 1.9)) : Math.min(many, 4);
  const rows = Math.ceil(many / Math.max(1, columns));
  const above = [];
  for (let i = 0; i < data.box.length; i += 1) if (data.box[i] < 0) above.push(i);
  const strip = above.length && !isGrid ? 0.4 : 0;
  const x = new Float32Array(data.box.length);
  const y = new Float32Array(data.box.length);
  for (let i = 0; i < data.box.length; i += 1) {
    const box = data.box[i];
    if (box >= 0) {
      x[i] = (box % columns) + 0.5 + data.x[i] * 0.52;
      y[i] = strip + Math.floor(box / columns) + 0.53 + data.y[i] * 0.46;
    }
  }
  above.forEach((i, at) => {
    x[i] = ((at + 0.5) * columns) / above.length;
    y[i] = strip ? 0.2 : -1;
  });
  const isOutside = Array.from(data.src, (src, i) => data.box[src] !== data.box[data.dst[i]] || data.box[src] < 0);
  return { columns: Math.max(1, columns), rows, strip, isGrid, x, y, above, isOutside };
}

function heightOf(scene, width) {
  const size = Math.min(width / scene.columns, scene.isGrid ? 170 : 460);
  const room = Math.max(320, innerHeight - 400); // the whole map, with use over time above it
  return Math.max(240, Math.min(680, room, size * (scene.rows + scene.strip) + 16));
}

function viewOf(scene, state, width, tall) {
  const size = Math.min(width / scene.columns, (tall - 8) / (scene.rows + scene.strip));
  const left = (width - size * scene.columns) / 2;
  const middle = [width / 2, tall / 2];
  return {
    size: size * state.zoom,
    x: (unit) => (left + unit * size + state.x - middle[0]) * state.zoom + middle[0],
    y: (unit) => (4 + unit * size + state.y - middle[1]) * state.zoom + middle[1],
  };
}

function focusOn(state, scene, box) {
  state.zoom = Math.min(scene.columns, scene.rows + scene.strip) > 1 || scene.columns > 1 ? Math.max(1, Math.min(scene.columns, 8) * 0.9) : 1;
  const size = state.size ?? 100;
  const dx = (box % scene.columns) + 0.5 - scene.columns / 2;
  const dy = scene.strip + Math.floor(box / scene.columns) + 0.5 - (scene.rows + scene.strip) / 2;
  state.x = -dx * size;
  state.y = -dy * size;
}

function boxAt(scene, state, map, [px, py]) {
  const view = viewOf(scene, state, map.width, map.canvas.clientHeight);
  const column = Math.floor((px - view.x(0)) / view.size);
  const row = Math.floor((py - view.y(scene.strip)) / view.size);
  return column >= 0 && column < scene.columns && row >= 0 && row < scene.rows ? row * scene.columns + column : -1;
}

const TILE = 90; // a box smaller than this, in pixels, is drawn as one tile

function drawMap(pen, width, tall, data, scene, state) {
  const view = viewOf(scene, state, width, tall);
  state.size = view.size / state.zoom;
  pen.save();
  pen.beginPath();
  pen.rect(0, 0, width, tall);
  pen.clip();
  drawBoxes(pen, data, scene, state, view);
  if (scene.isGrid && view.size < TILE) return pen.restore();
  const order = [...data.src.keys()].sort((a, b) => shareOf(data, a, state.bin) - shareOf(data, b, state.bin));
  for (const i of order) if (!(scene.isGrid && scene.isOutside[i])) drawLink(pen, i, data, scene, state, view);
  drawNodes(pen, data, scene, view);
  pen.restore();
}

function shareOf(data, link, bin) {
  return data.share[link * data.bins + bin] / FULL;
}

// The busiest link within each box, and from or to it.
function busiestOfBoxes(data, scene, bin) {
  const inside = new Float32Array(data.boxes.length);
  const outside = new Float32Array(data.boxes.length);
  for (let i = 0; i < data.src.length; i += 1) {
    const share = shareOf(data, i, bin);
    for (const end of [data.box[data.src[i]], data.box[data.dst[i]]]) {
      if (end < 0) continue;
      const one = scene.isOutside[i] ? outside : inside;
      one[end] = Math.max(one[end], share);
    }
  }
  return { inside, outside };
}

function drawBoxes(pen, data, scene, state, view) {
  const { inside, outside } = busiestOfBoxes(data, scene, state.bin);
  const isTile = scene.isGrid && view.size < TILE;
  const shade = (share) => (share > 0 ? ramp(share / state.full) : themed("idle"));
  data.boxes.forEach((name, box) => {
    const x = view.x((box % scene.columns) + 0.03);
    const y = view.y(scene.strip + Math.floor(box / scene.columns) + 0.03);
    const [wide, high] = [view.size * 0.94, view.size * 0.94];
    const bar = scene.isGrid ? Math.max(4, high * (isTile ? 0.2 : 0.05)) : 0;
    if (isTile) {
      pen.fillStyle = shade(inside[box]);
      pen.fillRect(x, y + bar + 1, wide, high - bar - 1);
    }
    if (scene.isGrid) {
      pen.fillStyle = shade(outside[box]);
      pen.fillRect(x, y, wide, bar);
    }
    pen.strokeStyle = box === state.box ? themed("accent") : themed("line");
    pen.lineWidth = box === state.box ? 3 : 1;
    pen.strokeRect(x, y, wide, high);
    pen.fillStyle = isTile ? (inside[box] / state.full > 0.5 ? "#000" : inside[box] > 0 ? "#fff" : themed("text")) : themed("quiet");
    pen.textAlign = isTile ? "center" : "left";
    pen.textBaseline = isTile ? "middle" : "top";
    if (!isTile) pen.fillText(name, x + 5, y + bar + 4, wide - 10);
    else if (view.size > 26) pen.fillText(name.replace(/^.*?(\d+)$/, "$1"), x + wide / 2, y + bar + (high - bar) / 2 + 1, wide - 2);
  });
}

// The two directions of a pair lie beside one another, each to the right of its own way.
function drawLink(pen, i, data, scene, state, view) {
  const share = shareOf(data, i, state.bin);
  const [a, b] = [data.src[i], data.dst[i]];
  const [x1, y1, x2, y2] = [view.x(scene.x[a]), view.y(scene.y[a]), view.x(scene.x[b]), view.y(scene.y[b])];
  const length = Math.hypot(x2 - x1, y2 - y1) || 1;
  const aside = Math.min(4, view.size * 0.02);
  const dx = (-(y2 - y1) / length) * aside;
  const dy = ((x2 - x1) / length) * aside;
  pen.strokeStyle = share > 0 ? ramp(share / state.full) : themed("idle");
  pen.lineWidth = (share > 0 ? 1.2 + 3.5 * Math.min(1, share / state.full) : 0.6) * Math.min(1.4, Math.max(0.5, view.size / 170));
  line(pen, x1 + dx, y1 + dy, x2 + dx, y2 + dy);
}

function drawNodes(pen, data, scene, view) {
  const radius = Math.max(1.2, Math.min(13, view.size * 0.052));
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  for (let i = 0; i < data.box.length; i += 1) {
    if (scene.isGrid && data.box[i] < 0) continue;
    const [x, y] = [view.x(scene.x[i]), view.y(scene.y[i])];
    if (data.is_switch[i]) {
      const isNamed = view.size > 130 && scene.above.length <= 16;
      const wide = isNamed ? pen.measureText(data.names[i]).width + 12 : radius * 1.6;
      const high = isNamed ? 19 : radius * 1.6;
      pen.fillStyle = themed("page");
      pen.strokeStyle = themed("switch");
      pen.lineWidth = 1.5;
      pen.fillRect(x - wide / 2, y - high / 2, wide, high);
      pen.strokeRect(x - wide / 2, y - high / 2, wide, high);
      pen.fillStyle = themed("text");
      if (isNamed) pen.fillText(data.names[i], x, y + 1);
    } else {
      pen.fillStyle = themed("node");
      pen.beginPath();
      pen.arc(x, y, radius, 0, 7);
      pen.fill();
      pen.fillStyle = themed("page");
      if (radius >= 8) pen.fillText(data.names[i], x, y + 1, radius * 1.9);
    }
  }
}

function drawUse(pen, width, tall, data, state) {
  const frame = { left: 92, top: 6, right: width - 12, bottom: tall - 40 };
  const links = data.src.length;
  const most = new Float32Array(data.bins);
  const mean = new Float32Array(data.bins);
  let high = 0.01;
  for (let bin = 0; bin < data.bins; bin += 1) {
    let used = 0;
    for (let i = 0; i < links; i += 1) {
      const share = shareOf(data, i, bin);
      most[bin] = Math.max(most[bin], share);
      if (data.total_nbytes[i] > 0) {
        mean[bin] += share;
        used += 1;
      }
    }
    mean[bin] /= used || 1;
    high = Math.max(high, most[bin]);
  }
  const x = (bin) => frame.left + (bin / data.bins) * (frame.right - frame.left);
  const y = (share) => frame.bottom - (share / high) * (frame.bottom - frame.top);
  pen.fillStyle = themed("mark");
  pen.fillRect(x(state.bin), frame.top, Math.max(2, x(1) - x(0)), frame.bottom - frame.top);
  for (const [values, colour] of [[most, seriesColour(5)], [mean, seriesColour(0)]]) {
    pen.strokeStyle = colour;
    pen.lineWidth = 1.6;
    pen.beginPath();
    for (let bin = 0; bin < data.bins; bin += 1) {
      pen.lineTo(x(bin), y(values[bin]));
      pen.lineTo(x(bin + 1), y(values[bin]));
    }
    pen.stroke();
  }
  const total = data.bins * data.bin_us;
  drawAxes(pen, frame,
    { at: (us) => x((us / total) * data.bins), ticks: ticksOf(0, total, 7), text: timeText, title: "time" },
    { at: y, ticks: ticksOf(0, high, 3), text: (v) => (data.is_measured ? shareText(v) : rateText(v * data.peak_gbytes_per_s)), title: "use" });
}

function busiestBin(data) {
  let best = 0;
  let most = -1;
  for (let bin = 0; bin < data.bins; bin += 1) {
    let sum = 0;
    for (let i = 0; i < data.src.length; i += 1) sum += data.share[i * data.bins + bin];
    if (sum > most) [best, most] = [bin, sum];
  }
  return best;
}

function busiest(data, scene, state) {
  const inBox = (i) => state.box < 0 || data.box[data.src[i]] === state.box || data.box[data.dst[i]] === state.box;
  const links = [...data.src.keys()].filter((i) => inBox(i) && shareOf(data, i, state.bin) > 0);
  links.sort((a, b) => shareOf(data, b, state.bin) - shareOf(data, a, state.bin));
  if (!links.length) return element("p", { class: "quiet" }, "Nothing moves.");
  const head = element("thead", {}, element("tr", {}, ["link", "use", "GB/s", "over all time"].map((name, at) => element("th", { class: at ? "number" : null, scope: "col" }, name))));
  const rows = links.slice(0, TOP_ROWS).map((i) => {
    const share = shareOf(data, i, state.bin);
    const full = data.is_measured ? data.gbytes_per_s[i] : data.peak_gbytes_per_s;
    return element("tr", {}, element("td", { class: "long" }, data.links[i].replace("->", " to ")), element("td", { class: "number" }, shareText(share)),
      element("td", { class: "number" }, plainText(share * full)),
      element("td", { class: "number" }, sizeText(data.total_nbytes[i])));
  });
  return [element("table", { class: "close" }, head, element("tbody", {}, rows)),
    links.length > TOP_ROWS ? element("p", { class: "quiet" }, `and ${links.length - TOP_ROWS} more in use`) : null];
}
