"use strict";
const worth = (row, column) => row.cells[column].dataset.value;
function compare(one, other) {
  if (one === "" || other === "") return one === other ? 0 : null;
  const a = Number(one), b = Number(other);
  return Number.isNaN(a) || Number.isNaN(b) ? one.localeCompare(other) : a - b;
}
for (const table of document.querySelectorAll("table[data-table]")) {
  const headings = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  headings.forEach((heading, column) => heading.querySelector("button").addEventListener("click", () => {
    const first = column ? "descending" : "ascending", second = column ? "ascending" : "descending";
    const order = heading.getAttribute("aria-sort") === first ? second : first;
    headings.forEach((other) => other.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", order);
    const sign = order === "ascending" ? 1 : -1;
    const rows = [...body.rows].sort((one, other) => {
      const a = worth(one, column), b = worth(other, column), found = compare(a, b);
      return found === null ? (a === "" ? 1 : -1) : sign * found;
    });
    body.append(...rows);
  }));
}
