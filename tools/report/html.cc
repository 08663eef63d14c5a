#include "report/html.h"

namespace verbena::tools::report {

std::string escape_html(const std::string& text) {
  std::string escaped;
  for (const char letter : text) {
    switch (letter) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += letter;
    }
  }
  return escaped;
}

std::string format_html_table(const std::vector<HtmlColumn>& columns,
                              const std::vector<std::vector<std::string>>& rows) {
  std::string html = "<div class=\"scroll\"><table><thead><tr>";
  for (const HtmlColumn& column : columns) {
    html +=
        std::string("<th") + (column.is_number ? "" : " class=\"text\"") + ">" + escape_html(column.label);
    if (!column.unit.empty()) html += "<span>" + escape_html(column.unit) + "</span>";
    html += "</th>";
  }
  html += "</tr></thead><tbody>\n";
  for (const std::vector<std::string>& row : rows) {
    html += "<tr>";
    for (size_t index = 0; index < row.size(); ++index) {
      const bool is_number = index >= columns.size() || columns[index].is_number;
      html +=
          std::string("<td") + (is_number ? "" : " class=\"text\"") + ">" + escape_html(row[index]) + "</td>";
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

}  // namespace verbena::tools::report
