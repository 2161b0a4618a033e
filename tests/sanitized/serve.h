// Serves C++ functions to the tests over stdin and stdout.
//
// A request is a line `name integers doubles sizes`, each of the three a comma-separated list or -,
// followed by the buffers' bytes. The answer is a line, `ok` or what went wrong, followed by all
// buffers as they are afterwards. Every buffer is an allocation of exactly its size, so that
// AddressSanitizer guards both ends.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "cpu/names.h"
#include "oasis/oris.h"

namespace serving {

struct Request {
  std::vector<int64_t> integers;
  std::vector<double> doubles;
  std::vector<size_t> sizes;
  std::vector<unsigned char*> buffers;

  template <typename T>
  T* buffer(size_t i) const {
    return reinterpret_cast<T*>(buffers.at(i));
  }
};

inline std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> items;
  if (list == "-") return items;
  std::istringstream in(list);
  for (std::string item; std::getline(in, item, ',');) items.push_back(item);
  return items;
}

// The doubles from `i` on are the packed options of an ORIS step.
inline oasis::OrisConfig oris_config(const Request& r, size_t i) {
  return oasis::oris_config({r.doubles.begin() + std::ptrdiff_t(i), r.doubles.end()});
}

// Answers every request by `serve(name, request)`, which says what went wrong or is empty.
template <typename Serve>
int run(Serve serve) {
  char line[4096];
  while (std::fgets(line, sizeof(line), stdin)) {
    std::istringstream words{std::string(line)};
    std::string name, integers, doubles, sizes;
    words >> name >> integers >> doubles >> sizes;
    Request r;
    for (const auto& item : split(integers)) r.integers.push_back(std::stoll(item));
    for (const auto& item : split(doubles)) r.doubles.push_back(std::strtod(item.c_str(), nullptr));
    for (const auto& item : split(sizes)) r.sizes.push_back(std::stoull(item));
    for (size_t size : r.sizes) {
      auto* buffer = static_cast<unsigned char*>(std::malloc(size));
      if (size && std::fread(buffer, 1, size, stdin) != size) return 1;
      r.buffers.push_back(buffer);
    }
    const std::string error = serve(name, r);
    std::printf("%s\n", error.empty() ? "ok" : error.c_str());
    for (size_t i = 0; i < r.sizes.size(); ++i) {
      std::fwrite(r.buffers[i], 1, r.sizes[i], stdout);
      std::free(r.buffers[i]);
    }
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace serving
