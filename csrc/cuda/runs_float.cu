// Rows at fractional positions: encode, and add where no two rows of x share a row.
#include "cuda/runs.h"

namespace sinpe {
namespace cuda {

SINPE_RUN_ROWS(PositionKind::kFloat, false);
SINPE_RUN_ROWS(PositionKind::kFloat, true);

}  // namespace cuda
}  // namespace sinpe
