package opspec_test

import (
	"errors"
	"fmt"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/opspec"
)

// What a backend asks before it plans an operation.
func ExampleDescribe() {
	sig, err := opspec.Describe(ascendrt.OpSpec{Kind: ascendrt.OpMatmul, Type: ascendrt.BFloat16, Attr: ascendrt.MatmulAttr{In: 64, Out: 128}})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, p := range sig.Params {
		fmt.Println(p.Name, p.Type, p.Use)
	}
	_, err = opspec.Describe(ascendrt.OpSpec{Kind: ascendrt.OpMatmul, Type: ascendrt.BFloat16, Attr: ascendrt.MatmulAttr{In: 64}})
	fmt.Println(errors.Is(err, ascendrt.ErrInvalid), err)
	// Output:
	// x bfloat16 reads
	// w bfloat16 reads
	// y bfloat16 writes
	// true a size of {In:64 Out:0 Weights:mk OutType:unknown Order:fixed} is not positive: device: invalid argument
}
