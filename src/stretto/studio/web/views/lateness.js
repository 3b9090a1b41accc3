// Ranks by collectives: who came how long after the first.

import { chooser, element, sortedTable } from "../dom.js";
import { heatMap } from "../heat.js";
import { rampLegend } from "../legend.js";
import { plainText, timeText } from "../units.js";

export function drawLateness(root, data, context) {
  let most = 0;
  for (const value of data.late_us) most = Math.max(most, value);
  const high = data.full_us || most;
  const columns = data.columns;
  const seq = (column) => (data.seq[column] === undefined ? "" : String(data.seq[column]));
  const rank = (row) => (data.ranks[row] === undefined ? "" : String(data.ranks[row]));
  const error = data.clock_error_us;
  const clock = error < 0 ? "Clocks of hosts are not bounded: compare ranks of one host only."
    : error > 0 ? `Clocks of two ranks may differ by ${timeText(2 * error)}.` : "";
  const shared = Math.ceil((data.to - data.from) / columns);
  const map = heatMap({
    rows: data.rows,
    columns,
    value: (row, column) => data.late_us[row * columns + column],
    high,
    label: `Lateness of ${data.rows} ranks in ${data.to - data.from} collectives`,
    rowTitle: data.ranks_a_row > 1 ? `rank (${data.ranks_a_row} a row)` : "rank",
    columnTitle: shared > 1 ? `step: the collective's number (${shared} a column, the latest counts)` : "step: the collective's number",
    rowText: rank,
    columnText: seq,
    cellText: (row, column) => {
      const value = data.late_us[row * columns + column];
      const kind = data.kinds[data.kind[column]] ?? "";
      return `rank ${rank(row)}, step ${seq(column)} (${kind}): ${value < 0 ? "no call" : `${timeText(value)} after the first`}`;
    },
    onZoom: (to) => {
      if (context.isLive && shared > 1 && to.right - to.left < columns) {
        const per = (data.to - data.from) / columns;
        context.go({ comm: data.comm, from: data.from + Math.floor(to.left * per), to: data.from + Math.ceil(to.right * per) });
      }
    },
  }, (width) => Math.min(620, Math.max(260, Math.min(data.rows * 22 + 60, width * 0.5))));
  const names = data.comms.map((comm) => `${comm.name}, ${comm.ranks} ranks, ${plainText(comm.calls)} calls`);
  const title = element("h2", {}, "Lateness: how long after the first rank each came");
  if (!most && !data.worst.length) return void root.append(title); // the note says what is missing
  const isPart = data.from > 0 || data.to < data.of;
  root.append(
    title,
    element("div", { class: "bar" },
      chooser("Communicator", names, data.comm, (at) => context.go({ comm: at, from: undefined, to: undefined }), !context.isLive),
      isPart ? element("button", { type: "button", click: () => context.go({ from: undefined, to: undefined }) }, `All ${plainText(data.of)} steps`) : null),
    clock ? element("p", { class: "quiet" }, clock) : "",
    rampLegend("time after the first rank:", "0", high < 0.99 * most ? `${timeText(high)} and more, to ${timeText(most)}` : timeText(high),
      element("span", {}, "panel colour: no call")),
    element("div", { class: "split" }, element("div", {}, map.root),
      element("section", {}, element("h3", {}, "Who came late"),
        sortedTable([
          { title: "rank", number: true, text: (row) => row.rank, value: (row) => row.rank },
          { title: "after the first, median", number: true, text: (row) => timeText(row.p50_us), value: (row) => row.p50_us },
          { title: "it alone kept the others", number: true, text: (row) => timeText(row.kept_us), value: (row) => row.kept_us },
        ], data.worst, "Who came late, and what that cost"))));
}
