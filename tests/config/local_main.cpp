// usage: local_main LIBRARY PLUGIN: a program without Tutti loads a library that has it (RTLD_LOCAL), which loads a plugin.
#include <dlfcn.h>

#include <cstdio>

int main(int argc, char** argv) {
  void* library = argc == 3 ? ::dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : nullptr;
  const auto load =
      library == nullptr
          ? nullptr
          : reinterpret_cast<int (*)(const char*)>(::dlsym(library, "load_plugin_here"));
  if (load == nullptr) {
    std::puts(::dlerror());
    return 4;
  }
  return load(argv[2]);
}
