// Nothing: what is compiled here is the headers that come before it (compile_time.cmake).
