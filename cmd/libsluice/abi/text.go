package abi

// #include "sluice.h"
// extern char *libsluice_texts[8][32];
import "C"

import (
	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/scheduler"
)

// names are those that C can ask for, by sluice_text_kind. They are copied to
// C memory once and stay there.
var names = [...]struct {
	n    int
	name func(int) string
}{
	C.SLUICE_TEXT_FINISH:  {int(scheduler.FinishRecomputed) + 1, func(i int) string { return scheduler.FinishReason(i).String() }},
	C.SLUICE_TEXT_REFUSAL: {int(scheduler.BelowThreshold) + 1, func(i int) string { return scheduler.RefusalReason(i).String() }},
	C.SLUICE_TEXT_REQUEST: {int(scheduler.Finished) + 1, func(i int) string { return scheduler.Status(i).String() }},
	C.SLUICE_TEXT_WAIT:    {int(scheduler.ForResume) + 1, func(i int) string { return scheduler.Wait(i).String() }},
	C.SLUICE_TEXT_MODE:    {int(graphs.Full) + 1, func(i int) string { return graphs.Mode(i).String() }},
	C.SLUICE_TEXT_REASON:  {int(graphs.NumReasons), func(i int) string { return graphs.Reason(i).String() }},
	C.SLUICE_TEXT_VERDICT: {numVerdicts, func(i int) string { return graphs.RowVerdict(i).String() }},
	C.SLUICE_TEXT_CAUSE:   {len(causes) + 1, causeText},
}

// numVerdicts is the number of verdicts.
const numVerdicts = int(graphs.MalformedNewTokens) + 1

func init() {
	for kind := range names {
		for i := range names[kind].n {
			C.libsluice_texts[kind][i] = C.CString(names[kind].name(i))
		}
	}
}

func causeText(i int) string {
	switch {
	case i == 0:
		return ""
	case i < len(causes):
		return causes[i].Error()
	}
	return "another error"
}

//export sluiceGoText
func sluiceGoText(kind, value C.int) *C.char {
	if kind < 0 || int(kind) >= len(names) || value < 0 || int(value) >= names[kind].n {
		return C.libsluice_texts[C.SLUICE_TEXT_CAUSE][0]
	}
	return C.libsluice_texts[kind][value]
}

//export sluiceGoVerdictClass
func sluiceGoVerdictClass(verdict C.int) C.int {
	if verdict < 0 || int(verdict) >= numVerdicts {
		return -1
	}
	return C.int(graphs.RowVerdict(verdict).Class())
}
