# cmake -DINPUT=raw.ll -DOUTPUT=clean.ll -P clean_assembly.cmake
# Takes out of LLVM's assembly what is about how it was compiled and not about what it does:
# * module flags: clang's `nvvm-reflect-ftz` 0 contradicts the 1 of Triton's kernels, and the link fails;
# * the target's attributes: with another `target-cpu` or `target-features` than the kernel's, or with `no-builtins`, a
#   function is not inlined where the passes run without a target, as Triton's do;
# * the source's name, which may hold a path.
file(READ ${INPUT} text)
string(REGEX REPLACE "\n!llvm\\.module\\.flags = [^\n]*" "" text "${text}")
string(REGEX REPLACE " \"(target-cpu|target-features|no-builtins|frame-pointer|no-trapping-math|stack-protector-buffer-size|denormal-fp-math-f32|uniform-work-group-size)\"(=\"[^\"]*\")?" "" text "${text}")
string(REGEX REPLACE "\nsource_filename = [^\n]*" "\nsource_filename = \"verbena\"" text "${text}")
file(WRITE ${OUTPUT} "${text}")
