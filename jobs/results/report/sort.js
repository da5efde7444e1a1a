"use strict";

// A click on a column's title sorts its table by it, a second one the other way round. Numbers come first and what has
// none ("-", "FAILED") last, in both directions.
function key(text) {
  const value = text.trim();
  if (value === "" || value === "-") return { kind: 2, value: "" };
  return Number.isFinite(Number(value)) ? { kind: 0, value: Number(value) } : { kind: 1, value };
}

function compare(a, b, direction) {
  if (a.kind !== b.kind) return a.kind - b.kind;
  return direction * (a.kind === 0 ? a.value - b.value : a.value.localeCompare(b.value, "en", { numeric: true }));
}

function sortBy(table, heads, column) {
  const ascending = heads[column].getAttribute("aria-sort") !== "ascending";
  for (const head of heads) head.removeAttribute("aria-sort");
  heads[column].setAttribute("aria-sort", ascending ? "ascending" : "descending");
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => ({ row, key: key(row.cells[column].textContent) }));
  rows.sort((a, b) => compare(a.key, b.key, ascending ? 1 : -1));
  body.append(...rows.map(({ row }) => row));
}

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.firstElementChild.addEventListener("click", () => sortBy(table, heads, column)));
}
