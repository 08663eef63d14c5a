#include "tools/ptx_interpreter.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace verbena::tools {
namespace {

using Binary = uint64_t (*)(uint64_t, uint64_t);

const std::map<std::string, Binary>& list_binaries() {
  static const std::map<std::string, Binary> kBinaries = {
      {"add.u32", [](uint64_t a, uint64_t b) -> uint64_t { return static_cast<uint32_t>(a + b); }},
      {"add.u64", [](uint64_t a, uint64_t b) { return a + b; }},
      {"mul.lo.u32", [](uint64_t a, uint64_t b) -> uint64_t { return static_cast<uint32_t>(a * b); }},
      {"mul.wide.u32",
       [](uint64_t a, uint64_t b) { return uint64_t{static_cast<uint32_t>(a)} * static_cast<uint32_t>(b); }},
      {"xor.b32", [](uint64_t a, uint64_t b) { return a ^ b; }},
      {"shr.u32", [](uint64_t a, uint64_t b) -> uint64_t { return static_cast<uint32_t>(a) >> b; }},
      {"shl.b64", [](uint64_t a, uint64_t b) { return a << b; }},
      {"setp.ge.u64", [](uint64_t a, uint64_t b) -> uint64_t { return a >= b; }},
      {"setp.eq.u64", [](uint64_t a, uint64_t b) -> uint64_t { return a == b; }},
      {"setp.eq.u32", [](uint64_t a, uint64_t b) -> uint64_t { return a == b; }},
      {"setp.lt.u32", [](uint64_t a, uint64_t b) -> uint64_t { return a < b; }},
  };
  return kBinaries;
}

std::string strip(std::string text) {
  text.erase(0, text.find_first_not_of(" \t\n"));
  text.erase(text.find_last_not_of(" \t\n;") + 1);
  return text;
}

std::string strip_comments(std::string_view text) {
  std::string kept(text);
  for (size_t at = 0; (at = kept.find("//", at)) != std::string::npos;)
    kept.erase(at, kept.find('\n', at) - at);
  return kept;
}

std::vector<std::string> split_operands(const std::string& text) {
  std::vector<std::string> operands;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    std::string operand = strip(text.substr(begin, end - begin));
    if (operand.front() == '[') operand = operand.substr(1, operand.size() - 2);
    operands.push_back(operand);
    begin = end + 1;
  }
  return operands;
}

}  // namespace

PtxProgram::PtxProgram(std::string_view text) {
  const std::string source = strip_comments(text);
  constexpr std::string_view kEntry = ".entry";
  for (size_t at = 0; (at = source.find(kEntry, at)) != std::string::npos;) {
    const size_t open = source.find('(', at);
    const size_t body_begin = source.find('{', open);
    const size_t body_end = source.find('}', body_begin);
    at += kEntry.size();
    Kernel& kernel = kernels_[strip(source.substr(at, open - at))];
    for (const std::string& parameter :
         split_operands(source.substr(open + 1, source.find(')', open) - open - 1))) {
      const size_t name = parameter.rfind(' ') + 1;
      kernel.parameters.emplace_back(parameter.substr(name),
                                     parameter.find(".u64") == std::string::npos ? 4 : 8);
    }
    for (size_t begin = body_begin + 1; begin < body_end;) {
      const size_t end = std::min(source.find('\n', begin), body_end);
      parse_line(kernel, strip(source.substr(begin, end - begin)));
      begin = end + 1;
    }
    at = body_end;
  }
}

void PtxProgram::parse_line(Kernel& kernel, const std::string& line) {
  if (line.empty() || line.starts_with(".reg")) return;
  if (line.back() == ':') {
    kernel.labels[line.substr(0, line.size() - 1)] = kernel.steps.size();
    return;
  }
  kernel.steps.push_back(parse_instruction(kernel, line));
}

size_t PtxProgram::find_register(Kernel& kernel, const std::string& name) {
  return kernel.register_numbers.emplace(name, kernel.register_numbers.size()).first->second;
}

std::function<uint64_t(const PtxProgram::Thread&)> PtxProgram::parse_operand(Kernel& kernel,
                                                                             const std::string& text) {
  if (text.front() != '%') {
    const uint64_t value = std::stoull(text, nullptr, 0);
    return [value](const Thread&) { return value; };
  }
  if (text.ends_with(".x")) return [text](const Thread& thread) { return thread.names.at(text); };
  const size_t number = find_register(kernel, text);
  return [number](const Thread& thread) { return thread.registers[number]; };
}

PtxProgram::Step PtxProgram::parse_instruction(Kernel& kernel, const std::string& instruction) {
  const size_t space = instruction.find(' ');
  const std::string opcode = instruction.substr(0, space);
  if (opcode == "ret") return [](Thread& thread) { thread.next = kReturned; };
  const std::string rest = strip(instruction.substr(space + 1));
  if (opcode.front() == '@') {
    const size_t predicate = find_register(kernel, opcode.substr(1));
    const Step guarded = parse_instruction(kernel, rest);
    return [=](Thread& thread) {
      if (thread.registers[predicate] != 0) guarded(thread);
    };
  }
  if (opcode == "bra" || opcode == "bra.uni") {
    return [&kernel, rest](Thread& thread) { thread.next = kernel.labels.at(rest); };
  }
  const std::vector<std::string> operands = split_operands(rest);
  if (opcode == "st.global.u32" || opcode == "red.global.add.u64") {
    const auto address = parse_operand(kernel, operands.at(0));
    const auto value = parse_operand(kernel, operands.at(1));
    const bool adds = opcode.starts_with("red");
    return [=](Thread& thread) {
      void* const target = reinterpret_cast<void*>(address(thread));
      uint64_t stored = value(thread);
      uint64_t before = 0;
      if (adds) std::memcpy(&before, target, sizeof before);
      stored += before;
      std::memcpy(target, &stored, adds ? 8 : 4);
    };
  }
  const size_t target = find_register(kernel, operands.at(0));
  if (opcode.starts_with("ld.param.")) {
    const std::string name = operands.at(1);
    return [=](Thread& thread) { thread.registers[target] = thread.names.at(name); };
  }
  const auto first = parse_operand(kernel, operands.at(1));
  if (opcode == "ld.volatile.global.u32") {
    return [=](Thread& thread) {
      uint32_t value;
      std::memcpy(&value, reinterpret_cast<const void*>(first(thread)), sizeof value);
      thread.registers[target] = value;
    };
  }
  if (opcode.starts_with("mov.") || opcode.starts_with("cvt") || opcode.starts_with("cvta.")) {
    const bool narrows = opcode == "cvt.u32.u64";
    return [=](Thread& thread) {
      thread.registers[target] = narrows ? static_cast<uint32_t>(first(thread)) : first(thread);
    };
  }
  const auto second = parse_operand(kernel, operands.at(2));
  if (opcode == "mad.lo.u32") {
    const auto third = parse_operand(kernel, operands.at(3));
    return [=](Thread& thread) {
      thread.registers[target] = static_cast<uint32_t>(first(thread) * second(thread) + third(thread));
    };
  }
  const auto binary = list_binaries().find(opcode);
  if (binary == list_binaries().end()) throw std::runtime_error("unknown PTX instruction: " + instruction);
  const Binary compute = binary->second;
  return [=](Thread& thread) { thread.registers[target] = compute(first(thread), second(thread)); };
}

void PtxProgram::launch(const std::string& name, Grid grid, void** arguments) const {
  const Kernel& kernel = kernels_.at(name);
  Thread thread;
  thread.names["%nctaid.x"] = grid.blocks;
  thread.names["%ntid.x"] = grid.threads;
  for (size_t index = 0; index < kernel.parameters.size(); ++index) {
    uint64_t value = 0;
    std::memcpy(&value, arguments[index], kernel.parameters[index].second);
    thread.names[kernel.parameters[index].first] = value;
  }
  for (uint32_t block = 0; block < grid.blocks; ++block) {
    for (uint32_t number = 0; number < grid.threads; ++number) {
      thread.names["%ctaid.x"] = block;
      thread.names["%tid.x"] = number;
      thread.registers.assign(kernel.register_numbers.size(), 0xA5A5A5A5A5A5A5A5ULL);
      thread.next = 0;
      while (thread.next < kernel.steps.size()) kernel.steps[thread.next++](thread);
    }
  }
}

}  // namespace verbena::tools
