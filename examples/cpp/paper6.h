/* Written by `python -m sinpe_ext export`; change the encoding and export again.
 *
 * Encoding(6)
 *
 * Use: sinpe_table(paper6, paper6_words, ...) and the other functions of sinpe/sinpe.h.
 */
#ifndef SINPE_PLAN_paper6_H
#define SINPE_PLAN_paper6_H

#include <stdint.h>

enum { paper6_words = 31, paper6_dim = 6 };

static const int64_t paper6[] = {
    91574311601457, 31, 6, 3,
    3, 11, 4607182418800017408, 3,
    0, 0, 4594902181429758083, 0,
    0, 0, 0, 0,
    2935890503282001226, 136271965767435384, 6325184346405909, 9154082963658192752,
    -4863359481001668096, 7579923024993389410, 0, 0,
    0, 4594902181429758083, 4575167020014147656, 4554960807990606869,
    -4871012300749705130, -4891738259325378424, 4312843512345289283,
};

#endif /* SINPE_PLAN_paper6_H */
