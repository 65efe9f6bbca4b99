"use strict";
// Chart sizes, theme button, score slider, sortable and filterable tables. Needs only the chart scripts above.
(function () {
  var root = document.documentElement;
  var chosen = null;
  try { chosen = localStorage.getItem("trainstone-theme"); } catch (error) { /* file:// pages may have no storage */ }
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  document.getElementById("theme").addEventListener("click", function () {
    var dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("trainstone-theme", root.dataset.theme); } catch (error) { /* as above */ }
  });

  function fit(spec, width) {
    // Vega-Lite cannot fit vconcat panels to a container. 94 pixels are for the vertical axis and padding.
    (spec.vconcat || []).forEach(function (panel) { panel.width = Math.max(120, width - 94); });
    return width < 560 ? narrow(spec) : spec;
  }

  function narrow(part) {
    // On a phone, legends have one column and row names are shorter.
    if (part === null || typeof part !== "object") return part;
    Object.keys(part).forEach(function (name) {
      var inner = part[name];
      if (name === "legend" && inner !== null && inner.columns) inner.columns = 1;
      if (name === "axis" && inner !== null && inner.labelLimit) inner.labelLimit = Math.min(inner.labelLimit, 120);
      if (name !== "values") narrow(inner);
    });
    return part;
  }

  function draw(place) {
    var spec = JSON.parse(document.getElementById(place.dataset.spec).textContent);
    var options = { ast: true, actions: false, renderer: "svg", tooltip: { theme: "custom" } };
    return vegaEmbed(place, fit(spec, place.clientWidth), options).then(function () {
      place.dataset.drawn = "yes";
    }).catch(function (error) {
      place.dataset.drawn = "failed";
      place.textContent = "This chart could not be drawn: " + error.message;
      console.error(error);
    });
  }

  var places = Array.prototype.slice.call(document.querySelectorAll(".chart"));
  var widths = new Map();
  function drawAll() {
    return Promise.all(places.filter(function (place) {
      var changed = widths.get(place) !== place.clientWidth;
      widths.set(place, place.clientWidth);
      return changed;
    }).map(draw));
  }
  window.chartsDrawn = drawAll();
  var waiting = 0;
  addEventListener("resize", function () {
    clearTimeout(waiting);
    waiting = setTimeout(function () { window.chartsDrawn = drawAll(); }, 150);
  });
  addEventListener("beforeprint", function () {
    document.querySelectorAll("details").forEach(function (details) { if (details.closest("figure") === null) details.open = true; });
  });

  document.querySelectorAll(".scored").forEach(function (gallery) {
    var slider = gallery.querySelector("input");
    slider.hidden = false;
    function apply() {
      gallery.querySelector("output").textContent = Number(slider.value).toFixed(2);
      gallery.querySelectorAll("figure").forEach(function (figure) {
        var correct = 0;
        figure.querySelectorAll("g[data-score]").forEach(function (box) {
          var low = Number(box.dataset.score) < Number(slider.value);
          box.classList.toggle("low", low);
          correct += !low && box.classList.contains("correct") ? 1 : 0;
        });
        var count = figure.querySelector(".count");
        if (count) count.textContent = Math.min(correct, Number(figure.querySelector(".all").textContent));
      });
    }
    slider.addEventListener("input", apply);
    apply();  // the browser restores the slider when the page is reloaded
  });

  function key(row, column) {
    var cell = row.cells[column];
    var text = cell.dataset.key === undefined ? cell.textContent.trim() : cell.dataset.key;
    var number = text === "" ? NaN : Number(text.replace(/,/g, ""));
    return isNaN(number) ? text.toLowerCase() : number;
  }
  document.querySelectorAll("table.sortable").forEach(function (table) {
    var heads = Array.prototype.slice.call(table.tHead.rows[0].cells);
    heads.forEach(function (head, column) {
      head.querySelector("button").addEventListener("click", function () {
        var down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach(function (other) { other.removeAttribute("aria-sort"); });
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        var rows = Array.prototype.slice.call(table.tBodies[0].rows);
        rows.sort(function (a, b) {
          var x = key(a, column), y = key(b, column);
          // Empty cells come last in both directions; numbers come before text.
          if (x === "" || y === "") return (x === "") - (y === "");
          var order = typeof x !== typeof y ? (typeof x === "number" ? -1 : 1) : x < y ? -1 : x > y ? 1 : 0;
          return down ? -order : order;
        });
        rows.forEach(function (row) { table.tBodies[0].appendChild(row); });
      });
    });
  });
  document.querySelectorAll("input[data-filters]").forEach(function (input) {
    var rows = Array.prototype.slice.call(document.querySelectorAll("#" + input.dataset.filters + " tbody tr"));
    var count = document.getElementById(input.dataset.counts);
    function apply() {
      var words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      var shown = 0;
      rows.forEach(function (row) {
        var text = row.textContent.toLowerCase();
        row.hidden = !words.every(function (word) { return text.includes(word); });
        shown += row.hidden ? 0 : 1;
      });
      count.textContent = shown + " of " + rows.length + " runs";
    }
    input.addEventListener("input", apply);
    apply();
  });
})();
