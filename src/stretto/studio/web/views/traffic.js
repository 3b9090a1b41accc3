// Ranks by ranks: who sent how much to whom.

import { chooser, element, replace } from "../dom.js";
import { heatMap } from "../heat.js";
import { rampLegend } from "../legend.js";
import { rateText, sizeText } from "../units.js";

export function drawTraffic(root, data) {
  const what = [
    { name: "bytes", values: data.nbytes, text: sizeText, title: "bytes sent" },
    { name: "rate while moving", values: data.gbytes_per_s, text: rateText, title: "10^9 bytes a second, while something is on its way" },
  ];
  const place = element("div");
  function show(at) {
    const { values, text, title } = what[at];
    let high = 0;
    let low = Infinity;
    for (const value of values) {
      high = Math.max(high, value);
      if (value > 0) low = Math.min(low, value);
    }
    const isLog = high / low > 100;
    const side = data.side;
    const name = (i) => (data.ranks[i] === undefined ? "" : String(data.ranks[i]));
    replace(place,
      rampLegend(`${title}${isLog ? ", logarithmic" : ""}:`, isLog ? text(low) : "0", text(high)),
      heatMap({
        rows: side,
        columns: side,
        value: (row, column) => (values[row * side + column] > 0 ? values[row * side + column] : -1),
        low: isLog ? low : 0,
        high,
        isLog,
        isSquare: true,
        label: `Traffic of ${side} by ${side} ranks`,
        rowTitle: "from rank",
        columnTitle: "to rank",
        rowText: name,
        columnText: name,
        cellText: (row, column) => {
          const at_ = row * side + column;
          const hosts = data.hosts[row] ? ` (${data.hosts[row]} to ${data.hosts[column]})` : "";
          return `rank ${name(row)} to rank ${name(column)}${hosts}: ${sizeText(data.nbytes[at_])}, ${rateText(data.gbytes_per_s[at_])} while moving`;
        },
      }, (width) => Math.max(300, Math.min(width - 44, innerHeight - 260))).root);
  }
  const isEmpty = !data.nbytes.some((value) => value > 0); // the note says what is missing
  root.append(element("h2", {}, "Traffic between ranks"));
  if (isEmpty) return;
  root.append(element("div", { class: "bar" }, chooser("Show", what.map((one) => one.name), 0, show)), place);
  show(0);
}
