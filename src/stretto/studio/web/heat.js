// A heat map: cells of a matrix as colours, with axes, a cursor, and a way closer.
//
// spec: {rows, columns, value(row, column), high, low?, isLog, label, rowTitle, columnTitle,
//   rowText(row), columnText(column), cellText(row, column), onZoom?(from, to)}
// A value below 0 is no value. Rows are from the top.

import { drawAxes, line, makeCanvas, pointerAt, ticksOf } from "./canvas.js";
import { rampRgb, themed } from "./colour.js";
import { element } from "./dom.js";

const LEFT = 74;
const FOOT = 42;
const TOP = 8;
const RIGHT = 12;

export function heatMap(spec, height) {
  const whole = { top: 0, bottom: spec.rows, left: 0, right: spec.columns };
  let window_ = { ...whole };
  let cursor = null;
  let dragged = null;
  const readout = element("p", { class: "readout", role: "status" });
  const made = makeCanvas(spec.label, height, draw, {
    tabindex: 0,
    role: "application",
    "aria-roledescription": "heat map",
    keydown: onKey,
    pointermove: onMove,
    pointerdown: onDown,
    pointerup: onUp,
    pointerleave: () => { if (!dragged) point(null); },
    dblclick: () => zoom({ ...whole }),
  });
  const help = element("p", { class: "quiet" },
    "Drag over a part, or press Enter at the cursor, to come closer; Escape, or a double click, shows all. Arrow keys move the cursor.");
  const back = element("button", { type: "button", click: () => zoom({ ...whole }) }, "Show all");

  function shade(value) {
    if (!(value >= 0)) return null;
    const low = spec.low ?? 0;
    if (!spec.isLog) return (value - low) / (spec.high - low || 1);
    if (value <= low) return 0;
    return Math.log(value / low) / Math.log(spec.high / low || 2);
  }

  function frameOf(width, tall) {
    return { left: LEFT, top: TOP, right: width - RIGHT, bottom: tall - FOOT };
  }

  function draw(pen, width, tall) {
    const frame = frameOf(width, tall);
    const across = Math.max(1, Math.round(frame.right - frame.left));
    const down = Math.max(1, Math.round(frame.bottom - frame.top));
    pen.fillStyle = themed("panel");
    pen.fillRect(frame.left, frame.top, across, down);
    paint(pen, frame, across, down);
    const rows = window_.bottom - window_.top;
    const columns = window_.right - window_.left;
    const x = (column) => frame.left + ((column + 0.5 - window_.left) / columns) * across;
    const y = (row) => frame.top + ((row + 0.5 - window_.top) / rows) * down;
    const whole_ = (low, high, most) => ticksOf(low, high - 1, most).filter(Number.isInteger);
    drawAxes(pen, frame,
      { at: x, ticks: whole_(window_.left, window_.right, Math.max(2, Math.min(10, across / 80))), text: spec.columnText, title: spec.columnTitle },
      { at: y, ticks: whole_(window_.top, window_.bottom, Math.max(2, Math.min(16, down / 22))), text: spec.rowText, title: spec.rowTitle });
    mark(pen, frame, across / columns, down / rows);
  }

  // Where a pixel stands for several cells it shows the largest: nothing is lost from sight.
  function paint(pen, frame, across, down) {
    const rows = window_.bottom - window_.top;
    const columns = window_.right - window_.left;
    const wide = Math.min(across, columns);
    const high = Math.min(down, rows);
    const image = new ImageData(wide, high);
    for (let j = 0; j < high; j += 1) {
      const top = window_.top + Math.floor((j * rows) / high);
      const bottom = Math.max(top + 1, window_.top + Math.floor(((j + 1) * rows) / high));
      for (let i = 0; i < wide; i += 1) {
        const left = window_.left + Math.floor((i * columns) / wide);
        const right = Math.max(left + 1, window_.left + Math.floor(((i + 1) * columns) / wide));
        let most = -1;
        for (let row = top; row < bottom; row += 1) {
          for (let column = left; column < right; column += 1) most = Math.max(most, spec.value(row, column));
        }
        const share = shade(most);
        if (share === null) continue;
        const [r, g, b] = rampRgb(share);
        image.data.set([r, g, b, 255], 4 * (j * wide + i));
      }
    }
    const aside = document.createElement("canvas");
    aside.width = wide;
    aside.height = high;
    aside.getContext("2d").putImageData(image, 0, 0);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(aside, frame.left, frame.top, across, down);
    if (across / columns < 14 || down / rows < 10) return;
    pen.strokeStyle = themed("page"); // large cells stand apart
    pen.lineWidth = 1;
    for (let i = 1; i < columns; i += 1) line(pen, frame.left + (i * across) / columns, frame.top, frame.left + (i * across) / columns, frame.bottom);
    for (let j = 1; j < rows; j += 1) line(pen, frame.left, frame.top + (j * down) / rows, frame.right, frame.top + (j * down) / rows);
  }

  function mark(pen, frame, wide, high) {
    pen.lineWidth = 2;
    pen.strokeStyle = themed("alarm");
    if (cursor) {
      pen.strokeRect(frame.left + (cursor.column - window_.left) * wide - 1, frame.top + (cursor.row - window_.top) * high - 1,
        Math.max(wide, 3) + 2, Math.max(high, 3) + 2);
    }
    if (dragged) {
      pen.setLineDash([4, 3]);
      pen.strokeRect(dragged.x, dragged.y, dragged.x2 - dragged.x, dragged.y2 - dragged.y);
      pen.setLineDash([]);
    }
  }

  function cellAt(x, y) {
    const frame = frameOf(made.width, made.canvas.clientHeight);
    const column = Math.floor(window_.left + ((x - frame.left) / (frame.right - frame.left)) * (window_.right - window_.left));
    const row = Math.floor(window_.top + ((y - frame.top) / (frame.bottom - frame.top)) * (window_.bottom - window_.top));
    const inside = column >= window_.left && column < window_.right && row >= window_.top && row < window_.bottom;
    return inside ? { row, column } : null;
  }

  function point(cell) {
    cursor = cell;
    readout.textContent = cell ? spec.cellText(cell.row, cell.column) : "";
    made.redraw();
  }

  function onMove(event) {
    const [x, y] = pointerAt(made.canvas, event);
    if (dragged) {
      dragged.x2 = x;
      dragged.y2 = y;
      made.redraw();
    } else point(cellAt(x, y));
  }

  function onDown(event) {
    const [x, y] = pointerAt(made.canvas, event);
    if (!cellAt(x, y)) return;
    dragged = { x, y, x2: x, y2: y };
    made.canvas.setPointerCapture(event.pointerId);
  }

  function onUp() {
    const drag = dragged;
    dragged = null;
    if (!drag || Math.abs(drag.x2 - drag.x) < 6 || Math.abs(drag.y2 - drag.y) < 6) return made.redraw();
    const frame = frameOf(made.width, made.canvas.clientHeight);
    const held = (value, low, high) => Math.min(high, Math.max(low, value));
    const one = cellAt(held(Math.min(drag.x, drag.x2), frame.left, frame.right - 1), held(Math.min(drag.y, drag.y2), frame.top, frame.bottom - 1));
    const two = cellAt(held(Math.max(drag.x, drag.x2), frame.left, frame.right - 1), held(Math.max(drag.y, drag.y2), frame.top, frame.bottom - 1));
    if (one && two) zoom({ top: one.row, left: one.column, bottom: two.row + 1, right: two.column + 1 });
  }

  function onKey(event) {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (event.key === "Escape") zoom({ ...whole });
    else if (event.key === "Enter") closer();
    else if (moves[event.key]) {
      const stride = event.shiftKey ? 10 : 1;
      const at = cursor ?? { row: window_.top, column: window_.left };
      const [dr, dc] = moves[event.key];
      point({
        row: Math.min(window_.bottom - 1, Math.max(window_.top, at.row + dr * stride)),
        column: Math.min(window_.right - 1, Math.max(window_.left, at.column + dc * stride)),
      });
    } else return;
    event.preventDefault();
  }

  function closer() {
    if (!cursor) return;
    const half = (low, high, at, most) => {
      const size = Math.max(1, Math.ceil((high - low) / 2));
      const start = Math.min(most - size, Math.max(0, at - Math.floor(size / 2)));
      return [start, start + size];
    };
    const [top, bottom] = half(window_.top, window_.bottom, cursor.row, spec.rows);
    const [left, right] = half(window_.left, window_.right, cursor.column, spec.columns);
    zoom({ top, bottom, left, right });
  }

  function zoom(to) {
    window_ = to;
    spec.onZoom?.(to);
    made.redraw();
  }

  if (spec.isSquare) made.root.style.maxWidth = "820px";
  return { root: element("div", {}, made.root, readout, element("div", { class: "bar" }, back, help)), redraw: made.redraw };
}
