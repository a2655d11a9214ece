(function () {
  "use strict";
  const data = JSON.parse(document.getElementById("map-data").textContent);
  const layers = new Map();
  data.rasters.forEach((each) => layers.set(each.name, each));
  data.fills.forEach((each) => layers.set(each.name, each));
  const bounds = [[0, 0], [data.height, data.width]];
  // The plane of the map: x to the right, y upwards; metres only serve the scale bar.
  const crs = L.extend({}, L.CRS.Simple, {
    distance: (a, b) => Math.hypot(a.lng - b.lng, a.lat - b.lat) * (data.metres || 1),
  });
  const touch = window.matchMedia("(pointer: coarse)").matches;
  const shapes = data.areas.map((area) =>
    area.rings.map((part) => part.map((ring) => ring.map(([x, y]) => [y, x]))));

  const land = shapes.some((shape) => shape.length)
    ? L.latLngBounds(shapes.flat(3)) : L.latLngBounds(bounds);

  function make(tag, text, name) {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (name) element.className = name;
    return element;
  }

  function list(index) {
    const dl = make("dl");
    data.facts.labels.forEach((label, k) => {
      dl.append(make("dt", label), make("dd", data.facts.rows[index][k]));
    });
    return dl;
  }

  function tip(part, index) {
    const box = make("div");
    box.append(make("b", data.areas[index].name));
    if (part.times) {  // the numbers of the areas are those of the latest period
      const at = part.layer.at ? part.layer.at[index] : null;
      if (at !== null) box.append(make("div", part.layer.label + ": " + part.layer.values[at]));
      return box;
    }
    data.facts.labels.forEach((label, k) => {
      box.append(make("div", label + ": " + data.facts.rows[index][k]));
    });
    return box;
  }

  function showLegend(element, layer) {
    element.replaceChildren(make("span", layer.unit || layer.title, "unit"));
    layer.legend.forEach(([colour, text]) => {
      const key = make("span", undefined, "key");
      const swatch = make("i");
      swatch.style.background = colour;
      key.append(swatch, make("span", text));
      element.append(key);
    });
    const none = make("span", undefined, "key");
    none.append(make("i"), make("span", "no value"));
    element.append(none);
  }

  // The text of the value of a picture's pixel, read from its colour; the pictures are exact.
  function valueAt(layer, image, x, y) {
    if (!layer.pixels) {
      const canvas = make("canvas");
      canvas.width = image.naturalWidth;
      canvas.height = image.naturalHeight;
      const context = canvas.getContext("2d", { willReadFrequently: true });
      context.drawImage(image, 0, 0);
      layer.pixels = context.getImageData(0, 0, canvas.width, canvas.height);
      layer.texts = new Map(layer.palette.map((colour, k) => [colour, layer.values[k]]).reverse());
    }
    const { width, height } = layer.pixels;
    const column = Math.floor(x * width), row = Math.floor(y * height);
    if (column < 0 || column >= width || row < 0 || row >= height) return null;
    const [red, green, blue, alpha] = layer.pixels.data.subarray(4 * (row * width + column));
    return alpha ? layer.texts.get((red << 16) | (green << 8) | blue) : null;
  }

  function build(figure) {
    const still = figure.hasAttribute("data-still"), times = figure.hasAttribute("data-times");
    const map = L.map(figure.querySelector(".plane"), {
      crs, attributionControl: false, minZoom: -6, maxZoom: 6, zoomSnap: 0, zoomDelta: 1,
      scrollWheelZoom: !still, dragging: !(still && touch), touchZoom: !(still && touch),
      maxBoundsViscosity: 1, maxBounds: L.latLngBounds(bounds).pad(0.5), fadeAnimation: false,
    });
    const part = { figure, map, still, times, opacity: 1, borders: true };
    const renderer = L.canvas({ padding: 0.3 });
    map.fitBounds(land, { animate: false, padding: [8, 8] });
    if (data.metres) L.control.scale({ imperial: false, maxWidth: 150 }).addTo(map);
    part.areas = shapes.map((shape, index) => {
      const polygon = L.polygon(shape, { renderer, smoothFactor: 0.5 });
      polygon.bindTooltip(() => tip(part, index), { sticky: true });
      if (!times) polygon.on("mouseover click", () => choose(index, false));
      return polygon.addTo(map);
    });
    part.show = (layer) => {
      const before = part.layer;
      part.layer = layer;
      if (part.image && layer.uri && before.legend === layer.legend) {  // without a flash between two periods
        part.image.setUrl(layer.uri);
        paint();
        return;
      }
      if (part.image) part.image.remove();
      part.image = null;
      if (part.layer.uri) {
        part.image = L.imageOverlay(part.layer.uri, bounds, {
          opacity: part.opacity, alt: part.layer.title, className: "raster",
        }).addTo(map);
        part.image.once("load", sharpen);
      }
      if (!before || before.legend !== layer.legend) {
        showLegend(figure.querySelector(".legend"), layer);
      }
      paint();
    };
    // A pixel of the map is a sharp square once it is larger than one of the screen.
    function sharpen() {
      const image = part.image && part.image.getElement();
      if (!image || !image.naturalWidth) return;
      const size = data.width * map.getZoomScale(map.getZoom(), 0) / image.naturalWidth;
      image.classList.toggle("crisp", size > 1.5);
    }
    function paint() {
      const fills = part.layer.colours;
      part.areas.forEach((polygon, index) => {
        const chosen = index === state.chosen && !still && !times;
        const colour = fills ? fills[index] : null;
        polygon.setStyle({
          color: chosen ? "#0b57d0" : "#22252b",
          weight: chosen ? 3 : (data.areas.length > 400 ? 0.4 : 0.7),
          opacity: part.borders || chosen ? (chosen ? 1 : 0.6) : 0,
          fillColor: colour || "#ffffff",
          fillOpacity: fills ? (colour ? part.opacity : 0.4 * part.opacity) : 0,
        });
      });
    }
    part.paint = paint;
    map.on("zoomend", sharpen);
    const here = figure.querySelector(".here");
    function tell(event) {
      const image = part.image && part.image.getElement();
      if (!image || !image.naturalWidth) { here.textContent = ""; return; }
      const { lat, lng } = map.mouseEventToLatLng(event);
      const text = valueAt(part.layer, image, lng / data.width, 1 - lat / data.height);
      const unit = part.layer.unit ? " (" + part.layer.unit + ")" : "";
      here.textContent = "Pixel: " + (text === null || text === undefined ? "no value" : text + unit);
    }
    // Leaflet drops moves that follow another within 32 ms, the last of a movement included.
    const plane = map.getContainer();
    for (const type of ["mousemove", "click"]) plane.addEventListener(type, tell);
    plane.addEventListener("mouseleave", () => { here.textContent = ""; });
    const id = figure.id;
    const choice = document.getElementById(id + "-layer");
    if (times) {
      runThrough(part, choice);
      return part;
    }
    choice.addEventListener("change", () => part.show(layers.get(choice.value)));
    const range = document.getElementById(id + "-opacity");
    if (range) {
      range.addEventListener("input", () => {
        part.opacity = range.value / 100;
        if (part.image) part.image.setOpacity(part.opacity);
        paint();
      });
    }
    const borders = document.getElementById(id + "-borders");
    if (borders) {
      borders.addEventListener("change", () => { part.borders = borders.checked; paint(); });
    }
    return part;
  }

  // A slider through the periods of a layer. A layer has those that it knows; it keeps the period.
  function runThrough(part, choice) {
    const slider = document.getElementById(part.figure.id + "-period");
    const told = document.getElementById(part.figure.id + "-told");
    const hex = (colour) => "#" + colour.toString(16).padStart(6, "0");
    data.times.forEach((layer) => {
      const colours = layer.palette.map(hex);
      layer.frames = layer.frames.map((frame) => {
        const own = frame.at ? { colours: frame.at.map((k) => k === null ? null : colours[k]) } : {};
        return { ...layer, ...frame, ...own };
      });
    });
    let layer, label;
    function show() {
      const frame = layer.frames[slider.value];
      label = frame.label;
      const text = frame.forecast ? label + " (forecast)" : label;
      told.textContent = text;
      slider.setAttribute("aria-valuetext", text);
      part.show(frame);
    }
    part.start = () => {
      layer = data.times[choice.value];
      const past = layer.frames.filter((frame) => !frame.forecast);
      const same = layer.frames.findIndex((frame) => frame.label === label);
      slider.max = layer.frames.length - 1;
      slider.value = same < 0 ? Math.max(past.length - 1, 0) : same;
      show();
    };
    slider.addEventListener("input", show);
    choice.addEventListener("change", part.start);
  }

  const state = { chosen: -1 };
  const picker = document.getElementById("area");
  const facts = document.getElementById("facts");
  data.areas
    .map((area, index) => [area.name, index])
    .sort((a, b) => a[0].localeCompare(b[0]))
    .forEach(([name, index]) => {
      const option = make("option", name);
      option.value = index;
      picker.append(option);
    });

  function choose(index, move) {
    const before = state.chosen;
    state.chosen = index;
    picker.value = index < 0 ? "" : String(index);
    if (index < 0) facts.replaceChildren();
    else facts.replaceChildren(make("h3", data.areas[index].name), list(index));
    pair.forEach((part) => {
      if (before !== index) part.paint();
      if (index >= 0) part.areas[index].bringToFront();
    });
    if (move && pair.length) {
      const to = index < 0 ? land : pair[0].areas[index].getBounds().pad(0.6);
      pair[0].map.fitBounds(to, { animate: false });
    }
  }
  picker.addEventListener("change", () => choose(picker.value === "" ? -1 : +picker.value, true));

  const pair = [];
  const parts = Array.from(document.querySelectorAll("figure.map"), build);
  pair.push(...parts.filter((part) => !part.still && !part.times));
  parts.forEach((part) => part.times ? part.start() : part.show(layers.get(part.figure.dataset.layer)));
  let busy = false;
  pair.forEach((part) => {
    part.map.on("move", () => {
      if (busy) return;
      busy = true;
      pair.filter((other) => other !== part).forEach((other) => {
        other.map.setView(part.map.getCenter(), part.map.getZoom(), { animate: false });
      });
      busy = false;
    });
  });

  document.querySelectorAll("button[data-area]").forEach((button) => {
    button.addEventListener("click", () => {
      choose(+button.dataset.area, true);
      document.getElementById("maps").scrollIntoView();
      picker.focus({ preventScroll: true });
    });
  });

  document.querySelectorAll("input[data-table]").forEach((input) => {
    const rows = Array.from(document.getElementById(input.dataset.table).tBodies[0].rows);
    const shown = document.getElementById(input.id.replace("search-", "shown-"));
    const texts = rows.map((row) => row.textContent.toLocaleLowerCase());
    input.addEventListener("input", () => {
      const wanted = input.value.trim().toLocaleLowerCase();
      let n = 0;
      rows.forEach((row, k) => {
        row.hidden = !texts[k].includes(wanted);
        n += row.hidden ? 0 : 1;
      });
      shown.textContent = n === rows.length ? n + " rows" : n + " of " + rows.length + " rows";
    });
  });

  document.querySelectorAll("table.sortable").forEach((table) => {
    const heads = Array.from(table.tHead.rows[0].cells);
    heads.forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((each) => each.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const numeric = head.classList.contains("number");
        const body = table.tBodies[0];
        const keyed = Array.from(body.rows, (row) => [row.cells[column].dataset.v, row]);
        keyed.sort(([a], [b]) => {
          if (a === "" || b === "") return (a === "") - (b === "");  // not known: last
          const order = numeric ? a - b : a.localeCompare(b);
          return down ? -order : order;
        });
        body.append(...keyed.map(([, row]) => row));
      });
    });
  });

  window.addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach((each) => { each.open = true; });
  });
  document.documentElement.dataset.ready = "yes";
  window.disaggMaps = parts.map((part) => part.map);  // for tests, and for the curious
}());
