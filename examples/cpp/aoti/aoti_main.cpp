// A model of AOTInductor with operators of sinpe_ext, run without Python: what examples/aoti_package.py wrote.
//   aoti_main FOLDER     reads model.pt2, schemas.txt, library.txt and inputs.pt there, writes outputs.pt
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/library.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

std::vector<char> read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> lines(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::vector<std::string> found;
  for (std::string line; std::getline(file, line);) found.push_back(line);
  return found;
}

void run(const std::string& folder) {
  // The schemas. The library has none: under Python `import sinpe_ext.functional` defines them, here the program does.
  // They must stay defined as long as the model may run.
  static torch::Library operators(torch::Library::FRAGMENT, "sinpe_ext", std::nullopt, __FILE__, __LINE__);
  const std::vector<std::string> schemas = lines(folder + "/schemas.txt");
  for (const std::string& schema : schemas) {
    operators.def(torch::schema(schema.c_str()));
    std::printf("  defined %s\n", schema.substr(0, schema.find('(')).c_str());
  }
  // The kernels: they register themselves as the library is loaded.
  if (!schemas.empty()) {
    const std::string library = lines(folder + "/library.txt").at(0);
    if (dlopen(library.c_str(), RTLD_NOW) == nullptr) throw std::runtime_error(dlerror());
  }

  torch::inductor::AOTIModelPackageLoader model(folder + "/model.pt2");
  std::vector<c10::IValue> outputs;
  const c10::IValue calls = torch::jit::pickle_load(read(folder + "/inputs.pt"));
  for (const c10::IValue& call : calls.toListRef()) {
    std::vector<at::Tensor> inputs;
    for (const c10::IValue& input : call.toListRef()) inputs.push_back(input.toTensor());
    outputs.emplace_back(model.run(inputs).at(0));
    std::printf("  ran a batch of %ld x %ld ids\n", long(inputs[0].size(0)), long(inputs[0].size(1)));
  }
  const std::vector<char> bytes = torch::jit::pickle_save(c10::ivalue::Tuple::create(std::move(outputs)));
  std::ofstream(folder + "/outputs.pt", std::ios::binary).write(bytes.data(), std::streamsize(bytes.size()));
  std::printf("  operators of sinpe_ext defined: %zu; Python in this process: %s\n", schemas.size(),
              dlsym(RTLD_DEFAULT, "Py_IsInitialized") ? "yes" : "no");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: aoti_main FOLDER\n");
    return 2;
  }
  try {
    run(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "aoti_main: %s\n", error.what());
    return 1;
  }
  return 0;
}
