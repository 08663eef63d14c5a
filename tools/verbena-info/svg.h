// Pieces of an SVG file. Lengths in its user units, which are pixels unless the viewer scales.
#pragma once
#include <string>

namespace verbena::tools::info {

struct Box {
  double left = 0, top = 0, width = 0, height = 0;

  double right() const { return left + width; }
  double bottom() const { return top + height; }
  double middle() const { return left + width / 2; }
};

class Svg {
 public:
  // `style`: a class of the style sheet.
  void add_box(const Box& box, const std::string& style);
  // The text's baseline begins at (x, y), or is centred there.
  void add_text(double x, double y, const std::string& text, const std::string& style, bool centred = false);
  void add_line(double from_x, double from_y, double to_x, double to_y, const std::string& style);
  void add_dot(double x, double y, const std::string& style);
  // What a viewer shows when the pointer rests on all that is added until end_group.
  void begin_group(const std::string& tooltip);
  void end_group();

  std::string finish(double width, double height, const std::string& title,
                     const std::string& style_sheet) const;

 private:
  std::string body_;
};

// Whether a text fits into a width at a font size, by the average width of letters.
bool fits(const std::string& text, double width, double font_size);
// Cut to what fits, with an ellipsis in its middle: names that are long differ at their ends.
std::string fit_text(const std::string& text, double width, double font_size);

}  // namespace verbena::tools::info
