"use strict";
(function () {
  const series = JSON.parse(document.getElementById("series").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const coarse = window.matchMedia("(pointer: coarse)");
  const hidden = new Set();
  const drawn = new Set();
  let printing = false;

  for (const button of document.querySelectorAll(".command button")) {
    button.addEventListener("click", async function () {
      await navigator.clipboard.writeText(button.previousElementSibling.textContent);
      button.textContent = "Copied";
    });
  }

  // tables

  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = table.tHead.rows[table.tHead.rows.length - 1].cells;
    const body = table.tBodies[0];
    const original = Array.from(body.rows);
    for (const head of heads) {
      const button = head.querySelector("button");
      button.addEventListener("click", function () {
        // the first click puts the best on top, the third restores the order
        const first = button.dataset.better === "high" ? "descending" : "ascending";
        const second = first === "descending" ? "ascending" : "descending";
        const before = head.getAttribute("aria-sort");
        const order = before === first ? second : before === second ? null : first;
        for (const each of heads) each.removeAttribute("aria-sort");
        const rows = Array.from(original);
        if (order !== null) {
          head.setAttribute("aria-sort", order);
          const sign = order === "descending" ? -1 : 1;
          rows.sort((a, b) => compare(read(a, head), read(b, head), sign));
        }
        for (const row of rows) body.appendChild(row);
      });
    }
  }

  function read(row, head) {
    const text = row.cells[head.cellIndex].dataset.value;
    return text === "" ? null : Number.isNaN(Number(text)) ? text : Number(text);
  }

  function compare(a, b, sign) {
    if (a === null || b === null) return (a === null) - (b === null);
    if (typeof a === "number" && typeof b === "number") return sign * (a - b);
    return sign * String(a).localeCompare(String(b));
  }

  // charts: drawn when they come into view, because a page may have a hundred

  function theme() {
    const night = dark.matches && !printing;
    return {
      night: night,
      text: night ? "#c3ccd4" : "#3d4750",
      line: night ? "#333c44" : "#e1e5e9",
      gray: night ? "#8f9ba6" : "#66707a",
      panel: night ? "#1b2126" : "#ffffff",
    };
  }

  function faint(color, share) {
    const parts = [1, 3, 5].map(i => parseInt(color.slice(i, i + 2), 16));
    return "rgba(" + parts.join(",") + "," + share + ")";
  }

  function paint(trace, look) {
    const place = trace.meta ? trace.meta.series : undefined;
    const own = place === undefined ? null : series[place];
    const color = own ? (look.night ? own.dark : own.light) : look.gray;
    const made = Object.assign({}, trace);
    if (own) made.visible = !hidden.has(place);
    if (trace.type === "heatmap") return made;
    made.showlegend = false;
    made.line = Object.assign({width: 1.8, dash: own ? own.dash : "solid"}, trace.line, {color: color});
    made.marker = Object.assign({size: 6, symbol: own ? own.symbol : "circle"}, trace.marker, {color: color});
    made.textfont = {color: own ? color : look.text, size: 11};
    if (trace.fill) made.fillcolor = faint(color, 0.15);
    if (trace.error_x) made.error_x = Object.assign({color: color, thickness: 2, width: 5}, trace.error_x);
    return made;
  }

  function axis(given, look) {
    const base = {
      gridcolor: look.line, zerolinecolor: look.gray, linecolor: look.gray, automargin: true,
      tickfont: {size: 11}, title: {font: {size: 12}, standoff: 8}, zeroline: false,
    };
    const made = Object.assign(base, given);
    if (given && given.title) made.title = Object.assign({font: {size: 12}, standoff: 8}, given.title);
    return made;
  }

  function draw(chart) {
    if (!chart.figure) chart.figure = JSON.parse(chart.nextElementSibling.textContent);
    const figure = chart.figure, look = theme();
    const layout = Object.assign({height: 270, uirevision: "kept"}, figure.layout, {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      margin: {l: 48, r: 14, t: 8, b: 40},
      font: {color: look.text, family: "inherit", size: 12},
      modebar: {bgcolor: "rgba(0,0,0,0)", color: look.gray, activecolor: look.text},
      hoverlabel: {bgcolor: look.panel, font: {color: look.text}, namelength: 30},
      xaxis: axis(figure.layout.xaxis, look),
      yaxis: axis(figure.layout.yaxis, look),
      dragmode: coarse.matches ? false : "zoom",
      showlegend: false,
      autosize: !printing,
    });
    if (printing) layout.width = chart.closest(".wide") ? 680 : 335;
    layout.shapes = (figure.layout.shapes || []).map(
      shape => Object.assign({line: {color: look.gray, width: 1.2, dash: "dash"}, layer: "below"}, shape));
    const config = {
      displaylogo: false, responsive: true,
      // named one by one: some versions of the library offer to upload the chart
      modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
      plotlyServerURL: "",
    };
    drawn.add(chart);
    return Plotly.react(chart, figure.data.map(trace => paint(trace, look)), layout, config);
  }

  function redraw() {
    for (const chart of drawn) draw(chart);
  }

  const charts = document.querySelectorAll(".chart");
  const watcher = new IntersectionObserver(function (entries) {
    for (const entry of entries) {
      if (entry.isIntersecting && !drawn.has(entry.target)) draw(entry.target);
    }
  }, {rootMargin: "400px"});

  // the library is packed inside the page; what it defines is global, as from any script
  async function unpack(library) {
    const bytes = Uint8Array.from(atob(library.textContent), each => each.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.appendChild(script);
    for (const chart of charts) watcher.observe(chart);
    if (printing) print();
  }

  const library = document.getElementById("library");
  if (library) {
    unpack(library).catch(function (error) {
      for (const chart of charts) chart.textContent = "This browser cannot draw charts: " + error;
    });
  }
  dark.addEventListener("change", redraw);

  // legend

  const buttons = Array.from(document.querySelectorAll("#legend button"));

  function show() {
    for (const button of buttons) {
      const place = Number(button.dataset.series);
      button.setAttribute("aria-pressed", String(!hidden.has(place)));
      // rows are dimmed, not taken away, or the legend would jump from under the mouse
      for (const swatch of document.querySelectorAll("th .swatch.s" + place)) {
        swatch.closest("tr").classList.toggle("off", hidden.has(place));
      }
    }
    redraw();
  }

  for (const button of buttons) {
    const place = Number(button.dataset.series);
    button.addEventListener("click", function () {
      if (!hidden.delete(place)) hidden.add(place);
      show();
    });
    button.addEventListener("dblclick", function () {
      const alone = hidden.size === series.length - 1 && !hidden.has(place);
      hidden.clear();
      if (!alone) for (let each = 0; each < series.length; each++) if (each !== place) hidden.add(each);
      show();
    });
  }

  // paper: everything is opened and drawn in light colors

  function print() {
    printing = true;
    for (const each of document.querySelectorAll("details")) each.open = true;
    if (window.Plotly) for (const chart of charts) draw(chart);
  }

  window.addEventListener("beforeprint", print);
  window.addEventListener("afterprint", function () {
    printing = false;
    redraw();
  });
})();
