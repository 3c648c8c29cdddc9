// Rows at consecutive positions: table, and add where no two rows of x share a row.
#include "cuda/runs.h"

namespace sinpe {
namespace cuda {

SINPE_RUN_ROWS(PositionKind::kConsecutive, false);
SINPE_RUN_ROWS(PositionKind::kConsecutive, true);

}  // namespace cuda
}  // namespace sinpe
