package grpcowner_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
	grpcowner "github.com/mysqllock/mysqllock/with/grpc"
)

func TestMain(m *testing.M) { mysqltest.Main(m) }

// service takes the same lock in each call, twice, and in a stream once more for
// each message.
type service struct {
	grpc_testing.UnimplementedTestServiceServer
	locker  *mysqllock.Locker
	inside  chan *mysqllock.Lock // gets the first handle of each call that has the lock
	proceed chan struct{}        // lets one such call end, without unlocking it
}

func (s *service) try(ctx context.Context) (*mysqllock.Lock, error) {
	lock, err := s.locker.TryLock(ctx, "order:42", 0, mysqllock.AutoRenew)
	if err != nil {
		return nil, status.Error(codes.Aborted, err.Error())
	}
	return lock, nil
}

func (s *service) EmptyCall(ctx context.Context, _ *grpc_testing.Empty) (*grpc_testing.Empty, error) {
	lock, err := s.try(ctx)
	if err != nil {
		return nil, err
	}
	again, err := s.try(ctx)
	if err != nil {
		return nil, err
	}
	if err := again.Unlock(); err != nil {
		return nil, err
	}
	s.inside <- lock
	select {
	case <-s.proceed:
	case <-ctx.Done():
	}
	return &grpc_testing.Empty{}, nil
}

func (s *service) FullDuplexCall(stream grpc_testing.TestService_FullDuplexCallServer) error {
	lock, err := s.try(stream.Context())
	if err != nil {
		return err
	}
	defer lock.Unlock()
	for {
		if _, err := stream.Recv(); err != nil {
			<-lock.Context().Done() // ends with the stream
			s.inside <- lock
			return err
		}
		again, err := s.try(stream.Context())
		if err != nil {
			return err
		}
		defer again.Unlock()
		if err := stream.Send(&grpc_testing.StreamingOutputCallResponse{}); err != nil {
			return err
		}
	}
}

// onEach runs a test with a service on each kind of server, and with a client
// that has one connection to it.
func onEach(t *testing.T, test func(t *testing.T, s *service, client grpc_testing.TestServiceClient)) {
	t.Parallel()
	for _, kind := range mysqltest.Kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			db, _ := mysqltest.Open(t, kind)
			locker, err := mysqllock.New(db)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, locker.Close()) })
			require.NoError(t, locker.CreateTable(t.Context()))

			s := &service{locker: locker, inside: make(chan *mysqllock.Lock, 1), proceed: make(chan struct{})}
			server := grpc.NewServer(
				grpc.ChainUnaryInterceptor(grpcowner.Unary),
				grpc.ChainStreamInterceptor(grpcowner.Stream))
			grpc_testing.RegisterTestServiceServer(server, s)
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			served := make(chan error, 1)
			go func() { served <- server.Serve(listener) }()
			t.Cleanup(func() {
				server.Stop()
				require.NoError(t, <-served)
			})
			conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
			require.NoError(t, err)
			t.Cleanup(func() { conn.Close() })
			test(t, s, grpc_testing.NewTestServiceClient(conn))
		})
	}
}

// soon receives what is to come without delay, on a machine that is busy.
func soon[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(20 * time.Second):
		t.Fatal("nothing came")
	}
	return v
}

func requireRefused(t *testing.T, err error) {
	t.Helper()
	require.Equal(t, codes.Aborted, status.Code(err), "%v", err)
	require.ErrorContains(t, err, mysqllock.ErrNotAcquired.Error())
}

// Two attempts of one call re-enter; two calls at once exclude each other; and the
// next one, on the same connection, is somebody else, even to a lock that was left
// behind.
func TestUnary(t *testing.T) {
	onEach(t, func(t *testing.T, s *service, client grpc_testing.TestServiceClient) {
		first := make(chan error, 1)
		go func() {
			_, err := client.EmptyCall(t.Context(), &grpc_testing.Empty{})
			first <- err
		}()
		lock := soon(t, s.inside)
		require.EqualValues(t, 1, s.locker.Stats().Reentered)
		_, err := client.EmptyCall(t.Context(), &grpc_testing.Empty{})
		requireRefused(t, err)
		close(s.proceed)
		require.NoError(t, soon(t, first))
		for range 3 {
			_, err = client.EmptyCall(t.Context(), &grpc_testing.Empty{})
			requireRefused(t, err)
		}
		require.EqualValues(t, 1, s.locker.Stats().Reentered)
		require.NoError(t, lock.Err(), "the call has ended, the lock has not")
		soon(t, lock.Context().Done()) // but its context has
		require.NoError(t, lock.Unlock())
		_, err = client.EmptyCall(t.Context(), &grpc_testing.Empty{})
		require.NoError(t, err)
		require.NoError(t, soon(t, s.inside).Unlock())
	})
}

// The messages of a stream re-enter; another stream, and a call, do not; the end
// of the client ends the lock's context.
func TestStream(t *testing.T) {
	onEach(t, func(t *testing.T, s *service, client grpc_testing.TestServiceClient) {
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := client.FullDuplexCall(ctx)
		require.NoError(t, err)
		for range 3 {
			require.NoError(t, stream.Send(&grpc_testing.StreamingOutputCallRequest{}))
			_, err := stream.Recv()
			require.NoError(t, err)
		}
		require.EqualValues(t, 3, s.locker.Stats().Reentered)
		bounded, stop := context.WithTimeout(t.Context(), 20*time.Second)
		defer stop()
		other, err := client.FullDuplexCall(bounded)
		require.NoError(t, err)
		_, err = other.Recv()
		requireRefused(t, err)
		_, err = client.EmptyCall(t.Context(), &grpc_testing.Empty{})
		requireRefused(t, err)

		cancel()
		require.ErrorIs(t, soon(t, s.inside).Context().Err(), context.Canceled)
		lock, err := s.locker.TryLock(t.Context(), "order:42", 10*time.Second, mysqllock.AutoRenew)
		require.NoError(t, err, "it was given back")
		require.NoError(t, lock.Unlock())
	})
}
