#include "report/html.h"

#include "common/markup.h"

namespace verbena::tools::report {

std::string format_html_table(const std::vector<HtmlColumn>& columns,
                              const std::vector<std::vector<std::string>>& rows) {
  std::string html = "<div class=\"scroll\"><table><thead><tr>";
  for (const HtmlColumn& column : columns) {
    html +=
        std::string("<th") + (column.is_number ? "" : " class=\"text\"") + ">" + escape_markup(column.label);
    if (!column.unit.empty()) html += "<span>" + escape_markup(column.unit) + "</span>";
    html += "</th>";
  }
  html += "</tr></thead><tbody>\n";
  for (const std::vector<std::string>& row : rows) {
    html += "<tr>";
    for (size_t index = 0; index < row.size(); ++index) {
      const bool is_number = index >= columns.size() || columns[index].is_number;
      html += std::string("<td") + (is_number ? "" : " class=\"text\"") + ">" + escape_markup(row[index]) +
              "</td>";
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

}  // namespace verbena::tools::report
