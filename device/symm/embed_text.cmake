# INPUT, text, becomes OUTPUT, a C++ string literal to be included.
file(READ ${INPUT} text)
file(WRITE ${OUTPUT} "R\"TEXT(${text})TEXT\"\n")
