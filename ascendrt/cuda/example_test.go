package cuda_test

import (
	"context"
	"fmt"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/cuda"
)

// The first GPU. Without one the error names the library that is missing and
// the variable that names another place.
func Example() {
	dev, err := cuda.Backend{}.Open(0, ascendrt.OpenOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close(context.Background())
	fmt.Println(dev.Info().Arch, "takes kernels of one's own:", dev.Caps().RawKernels)
}
