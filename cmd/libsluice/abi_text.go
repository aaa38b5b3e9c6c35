package main

// #include "sluice.h"
import "C"

import (
	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/scheduler"
)

// texts are the names that C can ask for, in memory that stays.
var texts = [...][]*C.char{
	C.SLUICE_TEXT_FINISH:  list(int(scheduler.FinishRecomputed)+1, func(i int) string { return scheduler.FinishReason(i).String() }),
	C.SLUICE_TEXT_REFUSAL: list(int(scheduler.BelowThreshold)+1, func(i int) string { return scheduler.RefusalReason(i).String() }),
	C.SLUICE_TEXT_REQUEST: list(int(scheduler.Finished)+1, func(i int) string { return scheduler.Status(i).String() }),
	C.SLUICE_TEXT_WAIT:    list(int(scheduler.ForResume)+1, func(i int) string { return scheduler.Wait(i).String() }),
	C.SLUICE_TEXT_MODE:    list(int(graphs.Full)+1, func(i int) string { return graphs.Mode(i).String() }),
	C.SLUICE_TEXT_REASON:  list(int(graphs.NumReasons), func(i int) string { return graphs.Reason(i).String() }),
	C.SLUICE_TEXT_VERDICT: list(numVerdicts, func(i int) string { return graphs.RowVerdict(i).String() }),
	C.SLUICE_TEXT_CAUSE:   list(len(causes)+1, causeText),
}

// numVerdicts is the number of verdicts.
const numVerdicts = int(graphs.MalformedNewTokens) + 1

var noText = C.CString("")

func list(n int, name func(int) string) []*C.char {
	out := make([]*C.char, n)
	for i := range out {
		out[i] = C.CString(name(i))
	}
	return out
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
	if kind < 0 || int(kind) >= len(texts) || value < 0 || int(value) >= len(texts[kind]) {
		return noText
	}
	return texts[kind][value]
}

//export sluiceGoVerdictClass
func sluiceGoVerdictClass(verdict C.int) C.int {
	if verdict < 0 || int(verdict) >= numVerdicts {
		return -1
	}
	return C.int(graphs.RowVerdict(verdict).Class())
}
