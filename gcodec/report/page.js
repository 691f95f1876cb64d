document.querySelectorAll("table.sortable").forEach(function (table) {
  var body = table.tBodies[0];
  table.querySelectorAll("th button").forEach(function (button) {
    button.addEventListener("click", function () {
      var head = button.parentNode, column = head.cellIndex, numeric = head.classList.contains("n");
      var up = head.getAttribute("aria-sort") === "descending" || (!numeric ? head.getAttribute("aria-sort") !== "ascending" : false);
      table.querySelectorAll("th").forEach(function (other) { other.removeAttribute("aria-sort"); });
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      function key(row) {
        var cell = row.cells[column], value = cell.getAttribute("data-v");
        return numeric ? (value === null ? -Infinity : Number(value)) : cell.textContent;
      }
      Array.from(body.rows).sort(function (a, b) {
        var x = key(a), y = key(b), order = numeric ? Math.sign(x - y) || 0 : x.localeCompare(y, undefined, { numeric: true });
        return up ? order : -order;
      }).forEach(function (row) { body.appendChild(row); });
    });
  });
});
document.querySelectorAll("input[type=search]").forEach(function (field) {
  var rows = Array.from(document.getElementById(field.getAttribute("data-table")).tBodies[0].rows);
  field.addEventListener("input", function () {
    var wanted = field.value.toLowerCase();
    rows.forEach(function (row) { row.hidden = !row.textContent.toLowerCase().includes(wanted); });
  });
});
