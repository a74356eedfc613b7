#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ir/status.h"

// NVIDIA's libraries, which are opened at run time and never closed.
namespace torch_remote::worker::cuda {

struct Library {
  std::string_view name;     // "cuBLASLt"
  std::string_view soname;   // "libcublasLt.so"; the version ".13" or ".12" is appended.
  std::string_view package;  // "nvidia-cublas"; the package of CUDA 12 ends in "-cu12".
  std::string_view folder;   // For CUDA 12: the library's folder in site-packages/nvidia, "cublas".
  // For a library with its own version ("9"), which is appended to the soname. Such a library has one package per CUDA
  // version ("-cu12", "-cu13"), and all of them install into `folder`.
  std::string_view version = {};
};

// Where libraries are looked for. What the process has open comes first, and then the members in their order.
// find_libraries (library_search.h) fills it in for this machine.
struct LibrarySearchPath {
  // Folders of libraries that the user names. A library there is used even if another folder has a later version.
  std::vector<std::string> folders = {};
  std::vector<std::string> packages = {};  // site-packages folders with NVIDIA's packages
  bool linker = true;                      // Whether the dynamic linker looks, too: LD_LIBRARY_PATH, ldconfig.
  std::vector<std::string> toolkits = {};  // Folders of CUDA and conda, which have lib64, lib or targets.
  int driver = 0;  // The driver's version: 13000. Libraries of later CUDA versions are not tried.
};

struct OpenLibrary {
  void* handle = nullptr;
  std::string path;
  int major = 0;  // The major version of CUDA.
  void* find(const char* symbol) const;
};

// A file to try. `path`: without a slash, the dynamic linker looks for it.
struct LibraryFile {
  std::string path;
  int major = 0;  // The major version of CUDA.
  bool operator==(const LibraryFile&) const = default;
};

// The files to try, in this order, in addition to a library that is open already.
std::vector<LibraryFile> files_of(const Library& library, const LibrarySearchPath& search_path);

// An error names the folders, the package, and how to install it.
Status open_library(const Library& library, const LibrarySearchPath& search_path, OpenLibrary* opened);

// Opens the other libraries in `library`'s folder whose names begin with `beginning`. Some libraries look for these
// only in the system's search path.
void open_siblings(const OpenLibrary& library, std::string_view beginning);

}  // namespace torch_remote::worker::cuda
