// A click on the head of a column sorts its table; a second one the other way round.
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
  document.querySelectorAll("article table thead th").forEach((head) => {
    head.style.cursor = "pointer";
    head.tabIndex = 0;
    head.title = "sort";
    const sort = () => {
      const body = head.closest("table").tBodies[0];
      const column = head.cellIndex;
      const direction = head.dataset.direction === "1" ? -1 : 1;
      head.closest("tr").querySelectorAll("th").forEach((other) => delete other.dataset.direction);
      head.dataset.direction = String(direction);
      [...body.rows]
        .sort((a, b) => direction * compare(value(a, column), value(b, column)))
        .forEach((row) => body.appendChild(row));
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => event.key === "Enter" && sort());
  });
});
