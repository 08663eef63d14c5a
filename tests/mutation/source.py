"""Reads a C++ file as far as the mutation tests need it: which function a place is in, which call or statement is around it."""
import bisect
import dataclasses
import re

SKIPPED = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|(?<![\w])'(?:\\.|[^'\\\n])+'", re.S)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)
MARK = re.compile(r"//\s*FAULT\((\w+(?:, *\w+)*)\)")
BLOCKS = re.compile(r"^(?:else\b\s*)?(?:if|for|while|switch|do|else|try|catch|extern)\b|^$|\bVERBENA_UNROLL")
CLASS = re.compile(r"\b(?:class|struct|union|enum(?:\s+class)?)\s+(?:alignas\s*\([^()]*\)\s*)?(\w+)[^()]*$")
# What looks like a function's name in front of its parenthesis and is none.
NO_NAMES = {"alignas", "decltype", "noexcept", "requires", "explicit", "__attribute__", "__launch_bounds__"}
NAME = re.compile(r"((?:\w+(?:<[^<>]*>)?::)*(?:operator\s*(?:\(\s*\)|\[\s*\]|[^\s\w(]+|\w+)|~?\w+))\s*\(")
# In front of the brace of a member's initialiser, behind which the head of the constructor goes on.
INITIALISER = re.compile(r"\)\s*(?:noexcept\s*)?:(?!:).*[\w>]\s*$", re.S)
PAIRS = {"(": ")", "[": "]", "{": "}", "<": ">"}


@dataclasses.dataclass
class Function:
    name: str
    begin: int
    end: int


def blank(match):
    return re.sub(r"[^\n]", " ", match.group(0))


class Source:
    """`code` is as long as the text, without comments and the contents of strings."""

    def __init__(self, text, path="?"):
        self.text, self.path = text, path
        self.code = SKIPPED.sub(blank, text)
        self.functions = []
        self._find_functions()
        self._begins = [function.begin for function in self.functions]

    def marks(self):
        """Pairs of a mark's name and the place of the code that it marks: on its own line, or on the next one with code."""
        for match in MARK.finditer(self.text):
            begin = self.text.rfind("\n", 0, match.start()) + 1
            if not self.code[begin:match.start()].strip():
                begin = match.end()
            place = re.compile(r"\S").search(self.code, begin)
            for name in re.split(r",\s*", match.group(1)):
                yield name, place.start()

    def function_at(self, place):
        """The innermost function's name with those of its classes; "" outside of functions."""
        for index in range(bisect.bisect_right(self._begins, place) - 1, -1, -1):
            if place < self.functions[index].end:
                return self.functions[index].name
        return ""

    def line_of(self, place):
        return self.text.count("\n", 0, place) + 1

    def close(self, place):
        """Behind what closes the bracket at `place`."""
        opening = self.code[place]
        depth = 0
        for at in range(place, len(self.code)):
            char = self.code[at]
            if char == opening:
                depth += 1
            elif char == PAIRS[opening] and not (char == ">" and self.code[at - 1] == "-"):
                depth -= 1
                if depth == 0:
                    return at + 1
            elif opening == "<" and char in ";{}":
                break
        raise ValueError(f"{self.path}:{self.line_of(place)}: '{opening}' is not closed")

    def call_of_template_argument(self, place):
        """(begin, end, name) of the call `name<..., place, ...>(...)`, or None where the place is in no such list."""
        depth = 0
        for at in range(place - 1, -1, -1):
            char = self.code[at]
            if char in ";{}" or (char == "(" and depth == 0):
                return None
            if char == ">" and self.code[at - 1] != "-":
                depth += 1
            elif char in ")":
                depth += 1
            elif char in "(":
                depth -= 1
            elif char == "<":
                if depth == 0:
                    return self._call_with_list(at)
                depth -= 1
        return None

    def call_at(self, place):
        """(begin, end, name) of the call whose name, perhaps with template arguments, begins at `place`."""
        name = re.compile(r"(?:\w+|\{\}|::|\.|->)+").match(self.code, place)
        end = name.end()
        if self.code[end] == "<":
            end = self.close(end)
        if self.code[end] != "(":
            return None
        return self._begin_of_name(place), self.close(end), name.group(0)

    def _call_with_list(self, at):
        try:
            end = self.close(at)
        except ValueError:
            return None
        name = re.search(r"\w+$", self.code[:at])
        if name is None or self.code[end:end + 1] != "(":
            return None
        return self._begin_of_name(name.start()), self.close(end), name.group(0)

    def _begin_of_name(self, place):
        prefix = re.search(r"(?:\w+(?:::|\.|->)(?:template\s+)?)*$", self.code[:place])
        begin = prefix.start()
        if begin > 0 and re.search(r"(?:::|\.|->)$", self.code[:begin]):
            raise ValueError(f"{self.path}:{self.line_of(place)}: a call on a call's result")
        return begin

    def statement_at(self, place):
        """(begin, end) of the statement that begins on the line of `place`: to its ';', or of an if or a loop its head."""
        begin = place
        end = begin
        while self.code[end] not in ";{":
            end = self.close(end) if self.code[end] in "([" else end + 1
        return begin, end + 1 if self.code[end] == ";" else end

    def _find_functions(self):
        code = self.code
        for match in DIRECTIVE.finditer(code):
            macro = re.match(r"\s*#\s*define\s+(\w+)", match.group(0))
            if macro is not None:
                self.functions.append(Function(macro.group(1), match.start(), match.end()))
        code = DIRECTIVE.sub(blank, code)
        stack = []  # of (kind, name, begin) for each open brace; parentheses too, of kind "("
        boundary = 0
        for match in re.compile(r"[;{}()\[\]]").finditer(code):
            char, at = match.group(0), match.start()
            if char in "([":
                stack.append(("(", "", boundary))
                boundary = at + 1
            elif char in ")]":
                boundary = self._pop(stack, "(", at)[2]
            elif char == ";":
                boundary = at + 1
            elif char == "{" and INITIALISER.search(code[boundary:at]):
                stack.append(("initialiser", "", boundary))
                boundary = at + 1
            elif char == "{":
                stack.append((*self._classify(code[boundary:at], stack), at))
                boundary = at + 1
            else:
                kind, name, begin = self._pop(stack, None, at)
                if kind == "function":
                    self.functions.append(Function(name, begin, at + 1))
                boundary = begin if kind == "initialiser" else at + 1
        if stack:
            raise ValueError(f"{self.path}: braces that are not closed")
        self.functions.sort(key=lambda function: function.begin)

    def _pop(self, stack, kind, at):
        if not stack or (kind is not None and stack[-1][0] != kind) or (kind is None and stack[-1][0] == "("):
            raise ValueError(f"{self.path}:{self.line_of(at)}: brackets do not match")
        return stack.pop()

    def _classify(self, head, stack):
        head = re.sub(r"\b(?:public|private|protected)\s*:", " ", head).strip()
        names = [name for kind, name, _ in stack if kind in ("class", "function")]
        if any(kind in ("function", "(") for kind, _, _ in stack):
            local = CLASS.search(head)
            if local is None or "=" in head:
                return "block", ""
            return "class", local.group(1)
        if re.match(r"(?:inline\s+)?namespace\b", head):
            return "namespace", ""
        if head.startswith("template"):
            head = re.sub(r"^(?:template\s*<(?:[^<>]|<(?:[^<>]|<[^<>]*>)*>)*>\s*)+", "", head)
        found = CLASS.search(head)
        if found is not None and "(" not in head[found.end(1):]:
            return "class", found.group(1)
        if BLOCKS.search(head):
            return "block", ""
        for match in NAME.finditer(head):
            if match.group(1) not in NO_NAMES and not match.group(1).startswith("VERBENA_"):
                return "function", "::".join([*names, re.sub(r"\s+", "", match.group(1))])
        return "block", ""
