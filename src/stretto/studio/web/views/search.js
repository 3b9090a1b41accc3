// A search of candidates: how the best cost fell, and the tree of who was made of whom.

import { drawAxes, line, makeCanvas, pointerAt, ticksOf } from "../canvas.js";
import { seriesColour, themed } from "../colour.js";
import { chooser, element, notesOf, replace, sortedTable } from "../dom.js";
import { seriesLegend } from "../legend.js";

export function drawSearch(root, data) {
  const place = element("div");
  const names = data.runs.map((one) => `${one.problem}, seed ${one.seed} (${one.trials.length} of ${one.evals}), ${one.file}`);
  root.append(element("h2", {}, "What the search tried"));
  root.append(element("div", { class: "bar" }, chooser("Run", names, 0, (at) => show(data.runs[at]))), place);
  function show(run) {
    const ways = [...new Set(run.trials.map((trial) => trial.way))];
    const colour = (trial) => (trial.refused ? themed("idle") : seriesColour(ways.indexOf(trial.way)));
    const told = element("p", { class: "readout", role: "status" });
    const refused = run.trials.filter((trial) => trial.refused);
    replace(place,
      notesOf(run.passed_over ? [`${run.passed_over} candidates are not shown.`] : []),
      seriesLegend([...ways.map((way, at) => [way, seriesColour(at)]), ["refused", "var(--idle)"], ["best so far, and what it was made of", "var(--text)", "thin"]]),
      element("div", { class: "halves" }, costCurve(run, colour, told), candidateTree(run, colour, told)),
      told,
      element("h3", {}, "The best so far, each time"),
      improvements(run),
      element("h3", {}, `Refused: ${refused.length}`),
      refusals(refused));
  }
  show(data.runs[0]);
}

function costText(cost) {
  return cost === null ? "none" : Number(cost.toPrecision(5)).toString();
}

function costSpan(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  const room = (high - low || Math.abs(high) || 1) * 0.05;
  return [low - room, high + room];
}

function evaluationAxis(run, frame) {
  const last = Math.max(1, ...run.trials.map((trial) => trial.number));
  const at = (number) => frame.left + (number / (last + 1)) * (frame.right - frame.left);
  return { at, ticks: ticksOf(0, last), text: String, title: "evaluation" };
}

function costCurve(run, colour, told) {
  const whole = run.trials.filter((trial) => trial.whole);
  const spots = [];
  if (!whole.length) return element("section", {}, element("h3", {}, "Cost"), element("p", {}, "Nothing has a cost yet."));
  const made = makeCanvas("Cost of each candidate, in order", 340, (pen, width, tall) => {
    const frame = { left: 84, top: 8, right: width - 12, bottom: tall - 42 };
    const sorted = whole.map((trial) => trial.cost).sort((a, b) => a - b);
    const [low, high] = costSpan([sorted[0], sorted[Math.floor(sorted.length * 0.9)]]);
    const y = (cost) => frame.bottom + ((Math.min(cost, high) - low) / (high - low)) * (frame.top - frame.bottom);
    const x = evaluationAxis(run, frame);
    drawAxes(pen, frame, x, { at: y, ticks: ticksOf(low, high), text: costText, title: "cost, the less the better" });
    spots.length = 0;
    for (const trial of whole) spots.push(candidateDot(pen, x.at(trial.number), y(trial.cost), colour(trial), trial));
    pen.strokeStyle = themed("text");
    pen.lineWidth = 1.5;
    let before = null;
    for (const trial of [...improving(whole), { number: Infinity }]) {
      const to = Math.min(frame.right, x.at(trial.number));
      if (before) line(pen, x.at(before.number), y(before.cost), to, y(before.cost));
      if (before && trial.number < Infinity) line(pen, to, y(before.cost), to, y(trial.cost));
      before = trial;
    }
  }, { pointermove: (event) => tellCandidate(made, event, spots, told) });
  return element("section", {}, element("h3", {}, "Cost (the worst tenth at the top)"), made.root);
}

function candidateTree(run, colour, told) {
  const spots = [];
  const byNumber = new Map(run.trials.map((trial) => [trial.number, trial]));
  const islands = 1 + Math.max(0, ...run.trials.map((trial) => trial.island));
  const made = makeCanvas("Tree of candidates: who was made of whom", 340, (pen, width, tall) => {
    const frame = { left: 84, top: 8, right: width - 12, bottom: tall - 42 };
    const x = evaluationAxis(run, frame);
    const high = (frame.bottom - frame.top) / islands;
    const y = (trial) => frame.top + (trial.island + 0.15 + 0.7 * ((trial.number * 0.618034) % 1)) * high;
    const lanes = [...Array(islands).keys()];
    drawAxes(pen, frame, x, { at: (island) => frame.top + (island + 0.5) * high, ticks: lanes, text: (at) => String(at + 1), title: "island" });
    for (const isLine of [false, true]) {
      pen.strokeStyle = themed(isLine ? "text" : "line");
      pen.lineWidth = isLine ? 1.5 : 0.5;
      for (const trial of run.trials) {
        if (trial.line !== isLine) continue;
        for (const parent of trial.parents.map((number) => byNumber.get(number))) {
          if (parent) line(pen, x.at(parent.number), y(parent), x.at(trial.number), y(trial));
        }
      }
    }
    spots.length = 0;
    for (const trial of run.trials) spots.push(candidateDot(pen, x.at(trial.number), y(trial), colour(trial), trial));
  }, { pointermove: (event) => tellCandidate(made, event, spots, told) });
  return element("section", {}, element("h3", {}, "Who was made of whom (thick: the best)"), made.root);
}

function* improving(whole) {
  let best = Infinity;
  for (const trial of whole) {
    if (trial.cost >= best) continue;
    best = trial.cost;
    yield trial;
  }
}

function improvements(run) {
  return sortedTable([
    { title: "evaluation", number: true, text: (row) => String(row.number), value: (row) => row.number },
    { title: "cost", number: true, text: (row) => costText(row.cost), value: (row) => row.cost },
    { title: "made by", text: (row) => row.way },
    { title: "candidate", long: true, text: (row) => row.text },
  ], [...improving(run.trials.filter((trial) => trial.whole))].reverse().slice(0, 40), "The best so far");
}

function refusals(refused) {
  const counts = new Map();
  for (const trial of refused) counts.set(trial.refused, (counts.get(trial.refused) ?? 0) + 1);
  if (!counts.size) return null;
  return sortedTable([
    { title: "how often", number: true, text: (row) => String(row[1]), value: (row) => row[1] },
    { title: "why", long: true, text: (row) => row[0] },
  ], [...counts].sort((a, b) => b[1] - a[1]).slice(0, 20), "Why candidates were refused");
}

function candidateDot(pen, x, y, colour, trial) {
  pen.fillStyle = colour;
  pen.beginPath();
  pen.arc(x, y, trial.line ? 4 : 2.5, 0, 7);
  pen.fill();
  return { x, y, trial };
}

function tellCandidate(made, event, spots, told) {
  const [x, y] = pointerAt(made.canvas, event);
  const near = spots.find((spot) => Math.hypot(spot.x - x, spot.y - y) < 7);
  if (!near) return;
  const { trial } = near;
  told.textContent = `${trial.number}, by ${trial.way}: ${trial.refused || `cost ${costText(trial.cost)}`}; ${trial.text}`;
}
