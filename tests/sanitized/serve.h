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
#include "oasis/select.h"

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

// Integers: n, whether there is valid, products, raises, stop. Doubles: ridge, then the options.
// Buffers: gram, valid, statistics, counters, then in the order of what is written.
inline oasis::Select select_of(const Request& r, oasis::Rule rule) {
  oasis::Select s{};
  s.n = r.integers.at(0);
  s.products = r.integers.at(2);
  s.raises = r.integers.at(3);
  s.stop = r.integers.at(4);
  s.rule = rule;
  s.ridge = r.doubles.at(0);
  s.config = oris_config(r, 1);
  s.gram = r.buffer<double>(0);
  s.given = r.integers.at(1) ? r.buffer<bool>(1) : nullptr;
  s.statistics = r.buffer<double>(2);
  s.counters = r.buffer<int64_t>(3);
  s.informativeness = r.buffer<double>(4);
  s.adjusted = r.buffer<double>(5);
  s.relative = r.buffer<double>(6);
  s.probability = r.buffer<double>(7);
  s.order = r.buffer<int64_t>(8);
  s.mask = r.buffer<bool>(9);
  s.skipped = r.buffer<bool>(10);
  s.threshold = r.buffer<double>(11);
  return s;
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
