// Rows at integer positions: encode, and add where no two rows of x share a row.
#include "cuda/runs.h"

namespace sinpe {
namespace cuda {

SINPE_RUN_ROWS(PositionKind::kInteger, false);
SINPE_RUN_ROWS(PositionKind::kInteger, true);

}  // namespace cuda
}  // namespace sinpe
