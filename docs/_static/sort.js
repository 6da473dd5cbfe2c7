// A click on the head of a column sorts a table of methods; a second one the other way round.
document.addEventListener("DOMContentLoaded", () => {
  const value = (row, column) => {
    const text = row.cells[column].textContent.trim();
    const number = parseFloat(text.replace("+", ""));
    return text !== "" && !Number.isNaN(number) ? number : text.toLowerCase();
  };
  const compare = (a, b) => {
    if (a === "" || b === "") return (a === "") - (b === "");
    return typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1;
  };
  document.querySelectorAll("table.methods thead th").forEach((head) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.append(...head.childNodes);
    head.append(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const direction = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      head.closest("tr").querySelectorAll("th").forEach((other) => other.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
      const body = head.closest("table").tBodies[0];
      [...body.rows]
        .sort((a, b) => direction * compare(value(a, head.cellIndex), value(b, head.cellIndex)))
        .forEach((row) => body.appendChild(row));
    });
  });
});
