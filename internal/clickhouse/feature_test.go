package clickhouse

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/feature"
	"github.com/weir-social/weir/internal/ops/doctor"
)

// TestJobIsPeriodic shows that a job leaves no dead letter: the next one does the same work.
func TestJobIsPeriodic(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{"periodic"}, IndexSegmentArgs{}.InsertOpts().Tags)
}

// TestDoctorAsksTheServer shows that a server that refuses the password is a finding, which does not contain it. Without
// an archive there is nothing to copy.
func TestDoctorAsksTheServer(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sql, err := io.ReadAll(r.Body)
		switch {
		case err != nil || !strings.Contains(fmt.Sprint(r.Header), "correct"):
			w.WriteHeader(http.StatusUnauthorized)
		case strings.Contains(string(sql), "system.settings"):
			fmt.Fprintln(w, "max_block_size")
		default:
			fmt.Fprintln(w, "0")
		}
	}))
	t.Cleanup(server.Close)
	check := func(password string) doctor.Finding {
		v := Variables{ClickHouse: "http://weir:" + password + "@" + server.Listener.Addr().String() + "/weir"}
		parts, err := v.open(feature.Core{})
		require.NoError(t, err)
		found := doctor.Run(t.Context(), time.Minute, parts.Checks...)
		require.Len(t, found, 1)
		return found[0]
	}
	_, err := (&Variables{ClickHouse: server.URL}).open(feature.Core{})
	require.ErrorContains(t, err, "WEIR_ARCHIVE is empty")
	t.Setenv("WEIR_ARCHIVE", "dir:"+t.TempDir())
	require.Equal(t, doctor.OK, check("correct").Level)
	refused := check("secret")
	require.Equal(t, doctor.Fail, refused.Level)
	require.NotContains(t, refused.Message, "secret")
	require.Contains(t, refused.Do, "WEIR_CLICKHOUSE")
}
