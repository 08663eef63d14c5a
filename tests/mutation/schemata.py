"""Mutants of a source, and a copy that has all of them: the process chooses one when it starts (chosen.h).

One build so judges every mutant. What the compiler has to know cannot be chosen at run time: such a mutant is `constant` and
takes a build of its own."""
import collections
import dataclasses
import pathlib
import zlib

IDS = 1 << 20


@dataclasses.dataclass
class Edit:
    begin: int
    end: int
    text: str  # instead of what is there: an expression, or a statement
    is_statement: bool = False


@dataclasses.dataclass
class Mutant:
    path: pathlib.PurePosixPath  # of the source, from the project's root
    line: int
    key: str  # the same after edits elsewhere: see number_keys()
    edits: list
    is_constant: bool = False
    id: int = 0


def number_keys(mutants):
    """Mutants of one function, of one kind, at calls of one name are told apart by their order."""
    counts = collections.Counter()
    for mutant in mutants:
        counts[mutant.key] += 1
        if counts[mutant.key] > 1:
            mutant.key += f" ({counts[mutant.key]})"
    taken = set()
    for mutant in mutants:
        mutant.id = zlib.crc32(mutant.key.encode()) % IDS or 1
        while mutant.id in taken:
            mutant.id = mutant.id % (IDS - 1) + 1
        taken.add(mutant.id)


def choose(mutant):
    return f"(::verbena_faults::kBuilt == {mutant.id})" if mutant.is_constant else f"::verbena_faults::is({mutant.id})"


def join(group, original):
    """The text in which one of several edits of the same place is chosen."""
    if group[0][1].is_statement:
        arms = "".join(f"if ({choose(mutant)}) {{ {edit.text} }} else " for mutant, edit in group)
        return f"{arms}{{ {original} }}"
    return "(" + "".join(f"{choose(mutant)} ? {edit.text} : " for mutant, edit in group) + f"({original}))"


def plant(text, mutants):
    """`text` with all mutants. The places of their edits are disjoint, the same, or one is inside of the other."""
    def render(begin, end, inside):
        result, at = "", begin
        while inside:
            first = inside[0][1]
            group = [pair for pair in inside if (pair[1].begin, pair[1].end) == (first.begin, first.end)]
            nested = [pair for pair in inside[len(group):] if pair[1].begin < first.end]
            if any(edit.end > first.end for _, edit in nested) or any(edit.is_statement != first.is_statement for _, edit in group):
                raise ValueError(f"{inside[0][0].path}:{inside[0][0].line}: mutants overlap: {inside[0][0].key}")
            inside = inside[len(group) + len(nested):]
            result += text[at:first.begin] + join(group, render(first.begin, first.end, nested))
            at = first.end
        return result + text[at:end]

    pairs = [(mutant, edit) for mutant in mutants for edit in mutant.edits]
    return render(0, len(text), sorted(pairs, key=lambda pair: (pair[1].begin, -pair[1].end, not pair[1].is_statement)))
