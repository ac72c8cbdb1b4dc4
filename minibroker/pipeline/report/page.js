// What a page of plots that are drawn already still needs: words under the pointer, rows in another
// order. Without it nothing is missing but these. No text is ever read as HTML.
"use strict";

const tip = document.createElement("div");
tip.className = "tip";
tip.hidden = true;
tip.setAttribute("aria-hidden", "true");  // the mark itself says it
document.body.append(tip);

function point(event) {
  const mark = event.target.closest?.("figure path[aria-label]");
  tip.hidden = !mark;
  if (!mark) return;
  tip.textContent = mark.getAttribute("aria-label").replaceAll(" · ", "\n");
  const { width, height } = tip.getBoundingClientRect();
  const left = Math.min(event.clientX + 14, innerWidth - width - 6);
  const under = event.clientY + 16;
  const top = under + height < innerHeight ? under : event.clientY - height - 10;
  tip.style.transform = `translate(${Math.max(4, left)}px, ${Math.max(4, top)}px)`;
}

document.addEventListener("pointermove", point);
document.addEventListener("pointerdown", point);
document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

function sort(head) {
  const table = head.closest("table");
  const column = [...head.parentElement.children].indexOf(head);
  const down = head.getAttribute("aria-sort") !== "descending";
  for (const other of head.parentElement.children) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const value = (row) => Number(row.children[column].dataset.v);
  const rows = [...table.tBodies[0].rows].filter((row) => !row.matches(".rest"));
  rows.sort((a, b) => (down ? value(b) - value(a) : value(a) - value(b)));
  table.tBodies[0].prepend(...rows);
}

for (const button of document.querySelectorAll("thead button")) {
  button.addEventListener("click", () => sort(button.parentElement));
}
