#include "verbena-info/svg.h"

#include <cstdio>

namespace verbena::tools::info {
namespace {

std::string escape(const std::string& text) {
  std::string escaped;
  for (const char letter : text) {
    if (letter == '&') {
      escaped += "&amp;";
    } else if (letter == '<') {
      escaped += "&lt;";
    } else if (letter == '>') {
      escaped += "&gt;";
    } else if (letter == '"') {
      escaped += "&quot;";
    } else if (static_cast<unsigned char>(letter) >= ' ') {  // XML knows no control characters
      escaped += letter;
    }
  }
  return escaped;
}

// name="12.5"
std::string number(const char* name, double value) {
  char text[64];
  std::snprintf(text, sizeof text, " %s=\"%.4g\"", name, value);
  return text;
}

std::string quoted(const char* name, const std::string& value) {
  return std::string(" ") + name + "=\"" + escape(value) + "\"";
}

}  // namespace

void Svg::add_box(const Box& box, const std::string& style) {
  body_ += "<rect" + quoted("class", style) + number("x", box.left) + number("y", box.top) +
           number("width", box.width) + number("height", box.height) + " rx=\"6\"/>\n";
}

void Svg::add_text(double x, double y, const std::string& text, const std::string& style, bool centred) {
  body_ += "<text" + quoted("class", style) + number("x", x) + number("y", y) +
           (centred ? " text-anchor=\"middle\"" : "") + ">" + escape(text) + "</text>\n";
}

void Svg::add_line(double from_x, double from_y, double to_x, double to_y, const std::string& style) {
  body_ += "<line" + quoted("class", style) + number("x1", from_x) + number("y1", from_y) +
           number("x2", to_x) + number("y2", to_y) + "/>\n";
}

void Svg::add_dot(double x, double y, const std::string& style) {
  body_ += "<circle" + quoted("class", style) + number("cx", x) + number("cy", y) + " r=\"4\"/>\n";
}

void Svg::begin_group(const std::string& tooltip) {
  body_ += "<g><title>" + escape(tooltip) + "</title>\n";
}

void Svg::end_group() {
  body_ += "</g>\n";
}

std::string Svg::finish(double width, double height, const std::string& title,
                        const std::string& style_sheet) const {
  char size[128];
  std::snprintf(size, sizeof size, "width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\"", width, height,
                width, height);
  return "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" " +
         std::string(size) + ">\n<title>" + escape(title) + "</title>\n<style>" + style_sheet +
         "</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n" + body_ + "</svg>\n";
}

std::string fit_text(const std::string& text, double width, double font_size) {
  constexpr double kLetterWidth = 0.56;  // of the font size, for sans-serif text with digits
  const auto most = static_cast<size_t>(width / (kLetterWidth * font_size));
  return text.size() <= most || most < 2 ? text : text.substr(0, most - 1) + "\u2026";
}

}  // namespace verbena::tools::info
