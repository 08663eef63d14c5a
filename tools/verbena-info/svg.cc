#include "verbena-info/svg.h"

#include <algorithm>
#include <cstdio>

#include "common/markup.h"

namespace verbena::tools::info {
namespace {

// name="12.5"
std::string number(const char* name, double value) {
  char text[64];
  std::snprintf(text, sizeof text, " %s=\"%.7g\"", name, value);
  return text;
}

std::string quoted(const char* name, const std::string& value) {
  return std::string(" ") + name + "=\"" + escape_markup(value) + "\"";
}

// Of UTF-8: every byte but the later ones of a letter begins one.
bool begins_letter(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
}

size_t count_letters(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), begins_letter));
}

// The place of letter `number`.
size_t find_letter(const std::string& text, size_t number) {
  size_t at = 0;
  for (size_t begun = 0; at < text.size(); ++at) {
    if (begins_letter(text[at]) && begun++ == number) break;
  }
  return at;
}

size_t count_most(double width, double font_size) {
  constexpr double kLetterWidth = 0.56;  // of the font size, for sans-serif text with digits
  return static_cast<size_t>(width / (kLetterWidth * font_size));
}

}  // namespace

void Svg::add_box(const Box& box, const std::string& style) {
  body_ += "<rect" + quoted("class", style) + number("x", box.left) + number("y", box.top) +
           number("width", box.width) + number("height", box.height) + " rx=\"6\"/>\n";
}

void Svg::add_text(double x, double y, const std::string& text, const std::string& style, bool centred) {
  body_ += "<text" + quoted("class", style) + number("x", x) + number("y", y) +
           (centred ? " text-anchor=\"middle\"" : "") + ">" + escape_markup(text) + "</text>\n";
}

void Svg::add_line(double from_x, double from_y, double to_x, double to_y, const std::string& style) {
  body_ += "<line" + quoted("class", style) + number("x1", from_x) + number("y1", from_y) +
           number("x2", to_x) + number("y2", to_y) + "/>\n";
}

void Svg::add_dot(double x, double y, const std::string& style) {
  body_ += "<circle" + quoted("class", style) + number("cx", x) + number("cy", y) + " r=\"4\"/>\n";
}

void Svg::begin_group(const std::string& tooltip) {
  body_ += "<g><title>" + escape_markup(tooltip) + "</title>\n";
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
         std::string(size) + ">\n<title>" + escape_markup(title) + "</title>\n<style>" + style_sheet +
         "</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n" + body_ + "</svg>\n";
}

bool fits(const std::string& text, double width, double font_size) {
  return count_letters(text) <= count_most(width, font_size);
}

std::string fit_text(const std::string& text, double width, double font_size) {
  const size_t most = count_most(width, font_size);
  if (most < 2 || count_letters(text) <= most) return text;
  const size_t kept = most - 1, at_end = kept / 2;
  return text.substr(0, find_letter(text, kept - at_end)) + "\u2026" +
         text.substr(find_letter(text, count_letters(text) - at_end));
}

}  // namespace verbena::tools::info
