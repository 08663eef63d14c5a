// A program for the precompiled headers of the tests (see CMakeLists.txt): CMake keeps them with a target.
int main() {}
