// Elements, made without ever reading a text as HTML.

export function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value !== false && value !== null && value !== undefined) {
      made.setAttribute(name, value === true ? "" : String(value));
    }
  }
  fill(made, children);
  return made;
}

export function fill(parent, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    parent.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return parent;
}

export function replace(parent, ...children) {
  parent.replaceChildren();
  return fill(parent, children);
}

export function chooser(label, names, chosen, onChange, disabled) {
  const select = element("select", { disabled, change: () => onChange(select.selectedIndex) });
  names.forEach((name, at) => select.append(new Option(name, String(at), false, at === chosen)));
  return element("label", {}, label, select);
}

export function notesOf(notes) {
  if (!notes || !notes.length) return null;
  return element("div", { class: "notes", role: "note" }, notes.map((note) => element("p", {}, note)));
}

// Columns: {name, title, number, text(row), value(row)}; a click on a head sorts.
export function sortedTable(columns, rows, caption) {
  let by = -1;
  let falling = true;
  const body = element("tbody");
  const heads = columns.map((column, at) => {
    const button = element("button", {
      type: "button",
      click: () => {
        falling = by === at ? !falling : Boolean(column.number);
        by = at;
        show();
      },
    }, column.title);
    return element("th", { class: column.number ? "number" : null, scope: "col" }, button);
  });
  function show() {
    const value = by < 0 ? null : columns[by].value ?? columns[by].text;
    const shown = by < 0 ? rows : [...rows].sort((a, b) => ordered(value(a), value(b)) * (falling ? -1 : 1));
    heads.forEach((head, at) => {
      if (at === by) head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    replace(body, shown.map((row) => element("tr", {}, columns.map((column) =>
      element("td", { class: column.number ? "number" : column.long ? "long" : null }, column.text(row))))));
  }
  show();
  return element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    element("table", {}, element("thead", {}, element("tr", {}, heads)), body));
}

function ordered(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a) < String(b) ? -1 : String(a) > String(b) ? 1 : 0;
}
