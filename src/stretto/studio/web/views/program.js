// A program, its plan and its kernel, side by side; hover or focus a line to see the others.

import { chooser, element } from "../dom.js";

export function drawProgram(root, data, context) {
  const panels = [
    panel("author", `Program: ${data.author_name}`, data.author),
    panel("plan", `Plan of rank ${data.rank}: ${data.schedule || "push bulk staged"}`, data.plan),
    panel("kernel", `Kernel of rank ${data.rank}`, data.kernel),
  ];
  const ranks = Array.from({ length: data.num_ranks }, (_, rank) => `rank ${rank}`);
  root.append(
    element("h2", {}, data.title),
    element("div", { class: "bar" },
      chooser("Program", data.choices, data.which, (at) => context.go({ which: at, rank: undefined }), !context.isLive),
      chooser("Rank", ranks, data.rank, (at) => context.go({ rank: at }), !context.isLive)),
    element("p", { class: "quiet" },
      "Point at a line, or walk with the arrow keys, to see what it became, or came from. A click holds it; Escape lets go. A signal is shown with the move before it, a wait with the move after it."),
    element("div", { class: "texts" }, panels.map((one) => one.root)));
  tie(panels);
}

function panel(name, title, text) {
  const lines = text.text.map((words, at) => {
    const number = text.number[at] ? String(text.number[at]) : "";
    const isTied = text.ops[at].length > 0 || text.steps[at].length > 0;
    return element("div", { class: isTied ? "tied" : null, role: isTied ? "option" : "presentation", "data-at": at },
      element("span", { class: "n" }, number), words || " ");
  });
  const code = element("div", { class: "code", tabindex: 0, role: "listbox", "aria-label": title, "data-panel": name }, lines);
  return { name, text, lines, code, root: element("section", {}, element("h3", {}, title), lines.length ? code : element("p", { class: "quiet" }, "There is none.")) };
}

// What a line is tied to: operations, and in plan and kernel the step itself.
function tie(panels) {
  let held = false;
  let at = null;
  function light(from, row, scrolls) {
    at = { from, row };
    const ops = new Set(from.text.ops[row]);
    const steps = new Set(from.text.steps[row].map(String));
    for (const one of panels) {
      let first = null;
      one.lines.forEach((div, i) => {
        const isSame = one.text.steps[i].some((step) => steps.has(String(step)));
        const isTied = one.text.ops[i].some((op) => ops.has(op));
        const byStep = steps.size > 0 && one.text.steps[i].length > 0; // both are of the plan: steps say it exactly
        const isLit = (one === from && i === row) || (byStep ? isSame : isTied);
        div.classList.toggle("lit", isLit);
        div.classList.toggle("near", isTied && !isLit);
        if (isLit) div.setAttribute("aria-selected", "true");
        else div.removeAttribute("aria-selected");
        if (isLit && first === null) first = div;
      });
      if (first && (one !== from || scrolls)) bringIntoSight(one.code, first);
    }
  }
  function clear() {
    at = null;
    for (const one of panels) for (const div of one.lines) {
      div.classList.remove("lit", "near");
      div.removeAttribute("aria-selected");
    }
  }
  const first = panels[0].lines.findIndex((div) => div.classList.contains("tied"));
  if (first >= 0) requestAnimationFrame(() => light(panels[0], first, false));
  for (const one of panels) {
    const rowOf = (event) => {
      const div = event.target.closest("[data-at]");
      return div && div.classList.contains("tied") ? Number(div.dataset.at) : null;
    };
    one.code.addEventListener("pointerover", (event) => {
      const row = rowOf(event);
      if (!held && row !== null) light(one, row, false);
    });
    one.code.addEventListener("click", (event) => {
      const row = rowOf(event);
      held = row !== null && !(held && at?.from === one && at.row === row);
      if (row !== null) light(one, row, false);
    });
    one.code.addEventListener("keydown", (event) => {
      const stride = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") {
        held = false;
        clear();
      } else if (stride) {
        event.preventDefault();
        let row = at?.from === one ? at.row + stride : 0;
        while (row >= 0 && row < one.lines.length && !one.lines[row].classList.contains("tied")) row += stride;
        if (row >= 0 && row < one.lines.length) light(one, row, true);
      }
    });
  }
}

// Not scrollIntoView: that would move the page, too.
function bringIntoSight(code, div) {
  const top = div.offsetTop - code.offsetTop;
  if (top < code.scrollTop || top > code.scrollTop + code.clientHeight - 24) code.scrollTop = top - code.clientHeight / 3;
}
