"use strict";
(function () {
  const table = document.getElementById("table");
  const body = table.tBodies[0];
  const heads = table.tHead.rows[1].cells;
  for (const head of heads) {
    const button = head.querySelector("button");
    button.addEventListener("click", function () {
      // the first click puts the best on top
      const first = button.dataset.better === "high" ? "descending" : "ascending";
      const other = first === "descending" ? "ascending" : "descending";
      const order = head.getAttribute("aria-sort") === first ? other : first;
      for (const each of heads) each.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", order);
      const sign = order === "descending" ? -1 : 1;
      const read = function (row) {
        const text = row.cells[head.cellIndex].dataset.value;
        return text === "" ? NaN : Number(text);
      };
      const rows = Array.from(body.rows);
      rows.sort(function (a, b) {
        const x = read(a), y = read(b);
        if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
        return sign * (x - y);
      });
      for (const row of rows) body.appendChild(row);
    });
  }
  for (const button of document.querySelectorAll(".legend button")) {
    button.addEventListener("click", function () {
      const hidden = document.body.classList.toggle("off" + button.dataset.method);
      button.setAttribute("aria-pressed", String(!hidden));
    });
  }
  window.addEventListener("beforeprint", function () {
    for (const each of document.querySelectorAll("details")) each.open = true;
  });
})();
