// A search: what was tried, in order; and how well the simulator had foreseen it.

import { drawAxes, line, makeCanvas, powersOf, pointerAt } from "../canvas.js";
import { seriesColour, themed } from "../colour.js";
import { chooser, element, notesOf, replace, sortedTable } from "../dom.js";
import { seriesLegend } from "../legend.js";
import { timeText } from "../units.js";

const MOST_COLOURS = 7;

export function drawTune(root, data) {
  const place = element("div");
  const names = data.searches.map((one) => `${one.test} of ${one.size}, ${one.memory} (${one.trials.length} tried), ${one.file}`);
  root.append(element("h2", {}, "What tuning tried"));
  if (!names.length) return void root.append(element("p", {}, "The report has no trials."));
  root.append(element("div", { class: "bar" }, chooser("Search", names, 0, (at) => show(data.searches[at]))), place);
  if (data.passed_over) root.append(notesOf([`${data.passed_over} trials could not be read, or were too many.`]));
  function show(search) {
    const algorithms = [...new Set(search.trials.map((trial) => algorithmOf(trial)))];
    const colour = (trial) => {
      const at = algorithms.indexOf(algorithmOf(trial));
      return at < MOST_COLOURS ? seriesColour(at) : themed("idle");
    };
    const shown = algorithms.slice(0, MOST_COLOURS).map((name, at) => [name, seriesColour(at)]);
    if (algorithms.length > MOST_COLOURS) shown.push(["others", "var(--idle)"]);
    const told = element("p", { class: "readout", role: "status" });
    const best = [...search.trials].sort((a, b) => a.us - b.us);
    replace(place,
      seriesLegend([...shown, ["best so far", "var(--text)", "thin"]]),
      element("div", { class: "halves" },
        inOrder(search, colour, told),
        foreseen(search, colour, told)),
      told,
      element("h3", {}, "The best"),
      sortedTable([
        { title: "pin", long: true, text: (row) => row.pin },
        { title: "measured", number: true, text: (row) => timeText(row.us), value: (row) => row.us },
        { title: "simulated", number: true, text: (row) => timeText(row.simulated_us), value: (row) => row.simulated_us ?? -1 },
        { title: "over the best", number: true, text: (row) => `${(row.us / best[0].us).toFixed(2)}x`, value: (row) => row.us },
      ], best.slice(0, 30), "The best trials"));
  }
  show(data.searches[0]);
}

function algorithmOf(trial) {
  return trial.pin.split(" ")[0];
}

function spanOf(values) {
  let low = Infinity;
  let high = 0;
  for (const value of values) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  return [low / 1.15, high * 1.15];
}

function logAxis(low, high, from, to) {
  const at = (value) => from + (Math.log(value / low) / Math.log(high / low)) * (to - from);
  const some = [];
  for (const power of powersOf(low, high)) for (const m of [1, 2, 5]) if (power * m >= low && power * m <= high) some.push(power * m);
  return { at, ticks: some.length > 9 ? some.filter((t) => Number.isInteger(Math.log10(t))) : some, text: timeText };
}

function inOrder(search, colour, told) {
  const { trials } = search;
  const spots = [];
  const made = makeCanvas("Time of each trial, in order", 340, (pen, width, tall) => {
    const frame = { left: 84, top: 8, right: width - 12, bottom: tall - 42 };
    const y = logAxis(...spanOf(trials.map((t) => t.us)), frame.bottom, frame.top);
    const x = (at) => frame.left + ((at + 0.5) / trials.length) * (frame.right - frame.left);
    const stride = Math.max(1, Math.ceil(trials.length / 8));
    const ticks = trials.map((_, at) => at).filter((at) => at % stride === 0);
    drawAxes(pen, frame, { at: x, ticks, text: (at) => String(at + 1), title: "trial, in order" }, { ...y, title: "measured (logarithmic)" });
    spots.length = 0;
    let best = Infinity;
    pen.lineWidth = 1.5;
    trials.forEach((trial, at) => {
      pen.strokeStyle = themed("text");
      const before = best;
      best = Math.min(best, trial.us);
      const left = x(at) - 0.5 * (x(1) - x(0));
      if (before < Infinity && before !== best) line(pen, left, y.at(before), left, y.at(best));
      line(pen, left, y.at(best), left + (x(1) - x(0)), y.at(best));
      spots.push(dot(pen, x(at), y.at(trial.us), colour(trial), trial));
    });
  }, { pointermove: (event) => tell(made, event, spots, told) });
  return element("section", {}, element("h3", {}, "In order"), made.root);
}

function foreseen(search, colour, told) {
  const trials = search.trials.filter((trial) => trial.simulated_us);
  if (!trials.length) return element("section", {}, element("h3", {}, "Simulated"), element("p", {}, "Nothing was simulated."));
  const spots = [];
  const made = makeCanvas("Simulated against measured time", 340, (pen, width, tall) => {
    const frame = { left: 84, top: 8, right: width - 12, bottom: tall - 42 };
    const span = spanOf(trials.flatMap((t) => [t.us, t.simulated_us]));
    const x = logAxis(...span, frame.left, frame.right);
    const y = logAxis(...span, frame.bottom, frame.top);
    drawAxes(pen, frame, { ...x, title: "measured (logarithmic)" }, { ...y, title: "simulated (logarithmic)" });
    pen.strokeStyle = themed("quiet");
    pen.setLineDash([4, 3]);
    line(pen, frame.left, frame.bottom, frame.right, frame.top);
    pen.setLineDash([]);
    spots.length = 0;
    for (const trial of trials) spots.push(dot(pen, x.at(trial.us), y.at(trial.simulated_us), colour(trial), trial));
  }, { pointermove: (event) => tell(made, event, spots, told) });
  return element("section", {}, element("h3", {}, "Simulated against measured (dashed: as foreseen)"), made.root);
}

function dot(pen, x, y, colour, trial) {
  pen.fillStyle = colour;
  pen.beginPath();
  pen.arc(x, y, 4, 0, 7);
  pen.fill();
  return { x, y, trial };
}

function tell(made, event, spots, told) {
  const [x, y] = pointerAt(made.canvas, event);
  const near = spots.find((spot) => Math.hypot(spot.x - x, spot.y - y) < 8);
  if (!near) return;
  const { trial } = near;
  told.textContent = `${trial.pin}: measured ${timeText(trial.us)}, simulated ${timeText(trial.simulated_us)}`;
}
