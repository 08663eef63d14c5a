// Nothing: what is compiled here is the headers that come before it (targets.cmake).
